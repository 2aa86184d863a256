"""Norm and spectral radius of the Jacobian of a layer, each with its error, iterated to a tolerance."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.fixed_point.layer_map import Cloud, LayerMap, Map
from rheoscope.covers.fixed_point.row_probes import probe_row
from rheoscope.covers.fixed_point.token_blocks import MAX_BLOCK_WORK, ROUNDING, largest_block_radius
from rheoscope.space.autograd_pullback import pullback_by_autograd

Estimate = tuple[Float[Tensor, ""], Float[Tensor, ""]]
"""A number and its error."""
FIRST_CHECK = 6
CHECK_GROWTH = 1.25
"""The error is computed after FIRST_CHECK steps, and then each time that the number of steps has grown by this factor."""
MIN_BLOCK_ITERATIONS = 20
"""With fewer permitted iterations, a quick estimate is wanted, and diagonal blocks take as long as tens of iterations."""


def jacobian_values(
    T: LayerMap,
    x: Cloud,
    iterations: int,
    tolerance: float,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Norm and radius of ∂T/∂X, each with its error."""
    start = torch.randn(x.shape, generator=generator).to(x)
    jvp, vjp = jacobian_products(T, x)
    norm, norm_error = jacobian_norm(jvp, vjp, start, iterations, tolerance)
    radius, radius_error = layer_radius(T, vjp, x, start, iterations, tolerance)
    return {
        "jacobian_norm": norm,
        "jacobian_norm_error": norm_error,
        "jacobian_radius": radius,
        "jacobian_radius_error": radius_error,
    }


def prompt_dependence(T: Map, x: Cloud, tolerance: float, generator: torch.Generator) -> dict[str, Tensor]:
    """‖∂T_last/∂X_others‖² / ‖∂T_last/∂X‖² and its standard error, from random probes at the output of the last token."""
    share, error = probe_row(T, x, len(x) - 1, others_share, tolerance, None, generator)
    return {"boundary": share[0], "boundary_error": error[0]}


def others_share(squares: Float[Tensor, "*b n"]) -> Float[Tensor, "*b 1"]:
    """The share of all tokens but the last."""
    return 1 - squares[..., -1:] / squares.sum(-1, keepdim=True)


def layer_radius(T: LayerMap, vjp: Map, x: Cloud, start: Cloud, iterations: int, tolerance: float) -> Estimate:
    """The largest |eigenvalue| of ∂T/∂X without the directions that the norm preserves, and its error.

    A causal Jacobian is block triangular, so its eigenvalues are those of its diagonal blocks. They are computed exactly. If
    that takes too long, if few iterations are permitted, or if the layer is bidirectional, Arnoldi iteration is used.
    """
    project, is_affordable = T.without_symmetries(x), len(x) * x.shape[-1] ** 3 <= MAX_BLOCK_WORK
    if T.own is not None and is_affordable and iterations >= MIN_BLOCK_ITERATIONS:
        return largest_block_radius(T.own, x, project, tolerance)
    products = vjp if T.own is None else jacobian_products(T.own, x)[1]
    return jacobian_radius(lambda w: project(products(project(w))), project(start), iterations, tolerance)


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


def jacobian_norm(jvp: Map, vjp: Map, v: Cloud, iterations: int, tolerance: float = 0.0) -> Estimate:
    """The largest singular value of ∂T/∂X and its error, by Lanczos iteration on JᵀJ.

    It is a lower bound up to rounding. JᵀJ is symmetric, so one of its eigenvalues lies within the residual.
    """
    square, residual = arnoldi(lambda v: vjp(jvp(v)), v, iterations, 2 * tolerance)
    return square.sqrt(), (square + residual).sqrt() - square.sqrt()


def jacobian_radius(vjp: Map, v: Cloud, iterations: int, tolerance: float = 0.0) -> Estimate:
    """The largest |eigenvalue| of ∂T/∂X and its error in either direction, since J need not be symmetric.

    Jᵀ has the same eigenvalues. A product with Jᵀ takes one backward pass, a product with J takes two.
    """
    return arnoldi(vjp, v, iterations, tolerance)


def arnoldi(A: Map, v: Cloud, iterations: int, tolerance: float) -> Estimate:
    """The largest |eigenvalue| of a linear map on the span of v, Av, A²v, …, and its error.

    The error is the residual ‖Az − λz‖ of the unit eigenvector z times the condition number of λ, plus rounding. The
    condition number is 1 if A is symmetric. The iteration ends when the error is at most `tolerance` times the eigenvalue,
    after `iterations` steps at the latest.
    """
    basis = [(v / v.norm()).double().flatten()]
    H, next_check = basis[0].new_zeros(1, 0), FIRST_CHECK
    for step in range(min(iterations, v.numel())):
        w, current_basis = A(basis[step].view_as(v).to(v.dtype)).double().flatten(), torch.stack(basis)
        column = w.new_zeros(step + 2)
        for _ in range(2):  # a second pass keeps the basis orthogonal despite rounding
            coefficients = current_basis @ w
            column[:-1] += coefficients
            w = w - coefficients @ current_basis
        column[-1] = w.norm()
        H = torch.cat([torch.nn.functional.pad(H, (0, 0, 0, 1)), column[:, None]], -1)
        if float(w.norm()) <= 1e-10 * float(H.norm()):
            break
        if tolerance and step + 1 >= next_check:
            next_check = math.ceil(CHECK_GROWTH * next_check)
            value, error = _largest_eigenvalue(H)
            if float(error) <= tolerance * float(value):
                return value, error
        basis.append(w / w.norm())
    return _largest_eigenvalue(H)


def _largest_eigenvalue(H: Float[Tensor, "k1 k"]) -> Estimate:
    """The largest |eigenvalue| of the Hessenberg matrix of Arnoldi, and its error."""
    eigenvalues, vectors = torch.linalg.eig(H[:-1])
    index = eigenvalues.abs().argmax()
    z, left_vector = vectors[:, index], torch.linalg.pinv(vectors)[index]
    condition = z.norm() * left_vector.norm()
    residual = H[-1, -1] * z[-1].abs() / z.norm()
    return eigenvalues[index].abs(), condition * (residual + ROUNDING * H.norm())
