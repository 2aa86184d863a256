"""Norm, spectral radius and prompt dependence of the Jacobian of a layer, from matrix–vector products."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.space.autograd_pullback import pullback_by_autograd

Cloud = Float[Tensor, "n d"]
Map = Callable[[Tensor], Tensor]
ROUNDING = 1e-6
"""Relative error of products with a Jacobian. Models compute norms and rotations in float32 whatever their dtype."""


def jacobian_values(
    T: Map, x: Cloud, iterations: int, generator: torch.Generator, on_product: Callable[[], None]
) -> dict[str, Tensor]:
    """Norm, radius and prompt dependence, from matrix–vector products with the Jacobian."""
    start = torch.randn(x.shape, generator=generator).to(x)
    jvp, vjp = jacobian_products(T, x)

    def counted_vjp(w: Tensor) -> Tensor:
        on_product()
        return vjp(w)

    values = {"boundary": prompt_dependence(counted_vjp, x, generator)}
    values["jacobian_norm"], values["jacobian_norm_error"] = jacobian_norm(
        jvp, counted_vjp, start, math.ceil(iterations / 2)
    )
    values["jacobian_radius"], values["jacobian_radius_error"] = jacobian_radius(counted_vjp, start, iterations)
    return values


def jacobian_products(T: Map, x: Cloud) -> tuple[Map, Map]:
    """v ↦ J v and w ↦ Jᵀ w at a cloud, from one pass of T. J v is the gradient of the linear map w ↦ Jᵀ w."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = T(x)
        w = torch.zeros_like(y, requires_grad=True)
        pullback = pullback_by_autograd(y, x, w, create_graph=True)
    return (
        lambda v: pullback_by_autograd(pullback, w, v, retain_graph=True),
        lambda w: pullback_by_autograd(y, x, w, retain_graph=True),
    )


def jacobian_norm(jvp: Map, vjp: Map, v: Cloud, iterations: int) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The largest singular value of ∂T/∂X and its error, by Lanczos iteration on JᵀJ.

    It is a lower bound up to rounding. JᵀJ is symmetric, so one of its eigenvalues lies within the residual.
    """
    square, residual = arnoldi(lambda v: vjp(jvp(v)), v, iterations)
    return square.sqrt(), (square + residual).sqrt() - square.sqrt()


def jacobian_radius(vjp: Map, v: Cloud, iterations: int) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The largest |eigenvalue| of ∂T/∂X and its error in either direction, since J need not be symmetric.

    Jᵀ has the same eigenvalues. A product with Jᵀ takes one backward pass, a product with J takes two.
    """
    return arnoldi(vjp, v, iterations)


def arnoldi(A: Map, v: Cloud, iterations: int) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The largest |eigenvalue| of a linear map on the span of v, Av, A²v, …, and its error.

    The error is the residual ‖Az − λz‖ of the unit eigenvector z times the condition number of λ, plus rounding. The
    condition number is 1 if A is symmetric.
    """
    basis = torch.zeros(iterations + 1, v.numel(), dtype=torch.float64, device=v.device)
    H = basis.new_zeros(iterations + 1, iterations)
    basis[0] = (v / v.norm()).double().flatten()
    for step in range(iterations):
        w, current_basis = A(basis[step].view_as(v).to(v.dtype)).double().flatten(), basis[: step + 1]
        for _ in range(2):  # a second pass keeps the basis orthogonal despite rounding
            coefficients = current_basis @ w
            H[: step + 1, step] += coefficients
            w = w - coefficients @ current_basis
        H[step + 1, step] = w.norm()
        if float(w.norm()) <= 1e-10 * float(H.norm()):
            return _largest_eigenvalue(H[: step + 2, : step + 1])
        basis[step + 1] = w / w.norm()
    return _largest_eigenvalue(H)


def _largest_eigenvalue(H: Float[Tensor, "k1 k"]) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The largest |eigenvalue| of the Hessenberg matrix of Arnoldi, and its error."""
    eigenvalues, vectors = torch.linalg.eig(H[:-1])
    index = eigenvalues.abs().argmax()
    z, left_vector = vectors[:, index], torch.linalg.pinv(vectors)[index]
    condition = z.norm() * left_vector.norm()
    residual = H[-1, -1] * z[-1].abs() / z.norm()
    return eigenvalues[index].abs(), condition * (residual + ROUNDING * H.norm())


def prompt_dependence(vjp: Map, x: Cloud, generator: torch.Generator, probes: int = 4) -> Float[Tensor, ""]:
    """‖∂T_last/∂X_others‖² / ‖∂T_last/∂X‖², estimated with random probes at the output of the last token."""
    own_square, total_square = x.new_zeros((), dtype=torch.float64), x.new_zeros((), dtype=torch.float64)
    for _ in range(probes):
        probe = torch.zeros_like(x)
        probe[-1] = torch.randn(x.shape[-1], generator=generator).to(x)
        gradient = vjp(probe).double()
        own_square, total_square = own_square + gradient[-1].square().sum(), total_square + gradient.square().sum()
    return 1 - own_square / total_square
