"""A Gaussian cloud stays Gaussian under attention, and its covariance follows an equation of its own."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.feature_maps import Linear
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.score import Relation
from rheoscope.theory.particles import Particles, drawn, evolve, in_space, until
from rheoscope.theory.predictions import Number, as_dataset

if TYPE_CHECKING:
    import xarray

N, D, END, STEPS, SIZE = 512, 2, 2.0, 16, 0.75
DEFINITIONS = {
    "covariance": "of the particles under softmax attention",
    "covariance_linear": "of the particles under linear attention",
    "covariance_ode": "by the closed equation",
    "covariance_extra": "by the equation with the term VΣ + ΣVᵀ added, as printed elsewhere",
    "particles": "the particles under softmax attention at the start and at the end",
}
Matrix = Float[Tensor, "d d"]


def gaussian(seed: int = 0) -> "xarray.Dataset":
    """Particles drawn from N(0, Σ) move by x' = Σ_j α_ij V x_j, scores ⟨Qx_i, Kx_j⟩, for drawn Q, K, V.

    **Formula** (columns, as in the source). Weighing N(0, Σ) by e^{⟨Qx, Ky⟩} moves its mean to ΣAx, A = KᵀQ, so that
    x' = VΣAx is linear and the law stays Gaussian with Σ' = VΣAΣ + (VΣAΣ)ᵀ. Linear attention, x' = (1/n) Σ_j ⟨Qx, Kx_j⟩ V x_j,
    obeys it exactly for any n. A term VΣ + ΣVᵀ would need x' to hold V x itself, which attention without a skip does not.

    **Numbers** the trace and the largest eigenvalue of Σ at the end, for both attentions, against the equation.

    **Source** Castin, Ablin, Carrillo and Peyré 2025 (arXiv:2501.18322).
    """
    Q, K, V, start = matrices(seed)
    x, times = cloud(start, seed), until(END, STEPS)
    A = K.mT @ Q
    seen = {
        "covariance": evolve(in_space(Mechanism(Relation(Linear(A.mT), scale=1.0)), V.mT), x, times),
        "covariance_linear": evolve(lambda t, y: y @ (V @ second_moment(y) @ A).mT, x, times),
    }
    tables = {name: torch.stack([second_moment(y) for y in path]) for name, path in seen.items()}
    tables["covariance_ode"] = evolve(lambda t, S: closure(S, V, A), start, times)
    tables["covariance_extra"] = evolve(lambda t, S: closure(S, V, A) + V @ S + S @ V.mT, start, times)
    sizes = {name: sizes_of(table[-1]) for name, table in tables.items()}
    numbers = [
        Number(f"{what} of Σ, {kind} attention", sizes[name][what], sizes["covariance_ode"][what], "closed equation")
        for kind, name in (("softmax", "covariance"), ("linear", "covariance_linear"))
        for what in ("trace", "largest eigenvalue")
    ]
    curves = {name: (("time", "row", "column"), table) for name, table in tables.items()}
    curves["particles"] = (("when", "particle", "row"), seen["covariance"][[0, -1]])
    off = {
        f"{what} of Σ with VΣ + ΣVᵀ added": sizes["covariance_extra"][what] for what in ("trace", "largest eigenvalue")
    }
    return as_dataset(
        numbers,
        curves,
        DEFINITIONS,
        {"time": times.numpy(), "when": ["start", "end"]},
        {"n": N, "d": D, "end": END},
        off,
    )


def matrices(seed: int) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    """Q, K, V without symmetry, and a covariance."""
    Q, K, V = (SIZE * x / torch.linalg.matrix_norm(x, 2) for x in drawn(seed, 3, D, D))
    root = torch.eye(D, dtype=torch.float64) + 0.3 * drawn(seed + 1, D, D)
    return Q, K, V, root @ root.mT / (root @ root.mT).trace() * D / 2


def cloud(covariance: Matrix, seed: int) -> Particles:
    """Points that fill the Gaussian evenly (Sobol), their second moment made exact."""
    even = torch.quasirandom.SobolEngine(D, scramble=True, seed=seed).draw(N, dtype=torch.float64)
    x = torch.special.ndtri(even.clamp(1e-6, 1 - 1e-6))
    x = x - x.mean(0)
    return (
        torch.linalg.solve_triangular(torch.linalg.cholesky(second_moment(x)), x.mT, upper=False).mT
        @ torch.linalg.cholesky(covariance).mT
    )


def second_moment(x: Particles) -> Matrix:
    return x.mT @ x / len(x)


def closure(S: Matrix, V: Matrix, A: Matrix) -> Matrix:
    """Σ' = VΣAΣ + (VΣAΣ)ᵀ."""
    pushed = V @ S @ A @ S
    return pushed + pushed.mT


def sizes_of(S: Matrix) -> dict[str, float]:
    return {"trace": float(S.trace()), "largest eigenvalue": float(torch.linalg.eigvalsh(S)[-1])}
