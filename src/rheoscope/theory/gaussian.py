"""A Gaussian cloud under attention stays Gaussian, and its covariance follows a closed equation."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.feature_maps import Linear
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.score import Relation
from rheoscope.messages.message import Message
from rheoscope.theory.particles import Particles, evolve, free_velocity, standard_normal, time_grid
from rheoscope.theory.predictions import Comparison, as_dataset

if TYPE_CHECKING:
    import xarray

N, D, END_TIME, N_STEPS, SPECTRAL_NORM = 512, 2, 2.0, 16, 0.75
DEFINITIONS = {
    "covariance": Message("covariance of the particles under softmax attention"),
    "covariance_linear": Message("covariance of the particles under linear attention"),
    "covariance_ode": Message("covariance by the closed equation"),
    "covariance_extra": Message("covariance by the equation with the additional term VΣ + ΣVᵀ"),
    "particles": Message("particles under softmax attention at the start and at the end"),
}
Matrix = Float[Tensor, "d d"]


def gaussian(seed: int = 0) -> "xarray.Dataset":
    """Particles sampled from N(0, Σ) move by x' = Σ_j α_ij V x_j with scores ⟨Qx_i, Kx_j⟩ for random Q, K, V.

    **Formula** In column notation, as in the source: weighting N(0, Σ) by e^{⟨Qx, Ky⟩} shifts its mean to ΣAx with A = KᵀQ. Hence
    x' = VΣAx is linear, and the distribution stays Gaussian with Σ' = VΣAΣ + (VΣAΣ)ᵀ. Linear attention,
    x' = (1/n) Σ_j ⟨Qx, Kx_j⟩ V x_j, satisfies it exactly for any n. An additional term VΣ + ΣVᵀ would need V x in x', which attention
    without a skip connection does not have.

    **Returns** the trace and the largest eigenvalue of the final Σ for both kinds of attention, compared with the equation.

    **Source** Castin, Ablin, Carrillo and Peyré 2025 (arXiv:2501.18322).
    """
    Q, K, V, initial_covariance = random_matrices(seed)
    x, times = gaussian_cloud(initial_covariance, seed), time_grid(END_TIME, N_STEPS)
    A = K.mT @ Q
    paths = {
        "covariance": evolve(free_velocity(Mechanism(Relation(Linear(A.mT), scale=1.0)), V.mT), x, times),
        "covariance_linear": evolve(lambda t, y: y @ (V @ second_moment(y) @ A).mT, x, times),
    }
    covariances = {name: torch.stack([second_moment(y) for y in path]) for name, path in paths.items()}
    covariances["covariance_ode"] = evolve(lambda t, S: covariance_rate(S, V, A), initial_covariance, times)
    covariances["covariance_extra"] = evolve(
        lambda t, S: covariance_rate(S, V, A) + V @ S + S @ V.mT, initial_covariance, times
    )
    summaries = {name: trace_and_top_eigenvalue(covariance[-1]) for name, covariance in covariances.items()}
    comparisons = [
        Comparison(
            f"{measure} of Σ, {kind} attention",
            summaries[name][measure],
            summaries["covariance_ode"][measure],
            "closed equation",
        )
        for kind, name in (("softmax", "covariance"), ("linear", "covariance_linear"))
        for measure in ("trace", "largest eigenvalue")
    ]
    curves = {name: (("time", "row", "column"), covariance) for name, covariance in covariances.items()}
    curves["particles"] = (("when", "particle", "row"), paths["covariance"][[0, -1]])
    contrasts = {
        f"{measure} of Σ with VΣ + ΣVᵀ added": summaries["covariance_extra"][measure]
        for measure in ("trace", "largest eigenvalue")
    }
    return as_dataset(
        comparisons,
        curves,
        DEFINITIONS,
        {"time": times.numpy(), "when": ["start", "end"]},
        {"n": N, "d": D, "end": END_TIME},
        contrasts,
    )


def random_matrices(seed: int) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    """Random Q, K, V without symmetry, and a covariance."""
    Q, K, V = (SPECTRAL_NORM * x / torch.linalg.matrix_norm(x, 2) for x in standard_normal(seed, 3, D, D))
    root = torch.eye(D, dtype=torch.float64) + 0.3 * standard_normal(seed + 1, D, D)
    return Q, K, V, root @ root.mT / (root @ root.mT).trace() * D / 2


def gaussian_cloud(covariance: Matrix, seed: int) -> Particles:
    """Quasi-random Gaussian points (Sobol) with exactly the given second moment."""
    uniform = torch.quasirandom.SobolEngine(D, scramble=True, seed=seed).draw(N, dtype=torch.float64)
    x = torch.special.ndtri(uniform.clamp(1e-6, 1 - 1e-6))
    x = x - x.mean(0)
    return (
        torch.linalg.solve_triangular(torch.linalg.cholesky(second_moment(x)), x.mT, upper=False).mT
        @ torch.linalg.cholesky(covariance).mT
    )


def second_moment(x: Particles) -> Matrix:
    return x.mT @ x / len(x)


def covariance_rate(S: Matrix, V: Matrix, A: Matrix) -> Matrix:
    """Σ' = VΣAΣ + (VΣAΣ)ᵀ."""
    half_rate = V @ S @ A @ S
    return half_rate + half_rate.mT


def trace_and_top_eigenvalue(S: Matrix) -> dict[str, float]:
    return {"trace": float(S.trace()), "largest eigenvalue": float(torch.linalg.eigvalsh(S)[-1])}
