"""Equiangular particles: their common cosine follows one differential equation."""

import math
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.theory.particles import (
    crossing_time,
    dot_product_attention,
    evolve,
    integrate,
    normalise,
    sphere_velocity,
    time_grid,
)
from rheoscope.theory.predictions import Comparison, as_dataset

if TYPE_CHECKING:
    import xarray

TARGET_COSINE = 0.9
CASES = ((20, 1.0, 2.71, 4.0), (20, 5.0, 8.31, 10.0), (467, 1.0, 4.18, 4.4))
"""n, β, the published t(γ = .9), and the end time of the simulation."""
N_STEPS = 12
Curve = Float[Tensor, " t"]
DEFINITIONS = {
    "cosine": Message("cosine of every pair of particles in the particle system"),
    "cosine_ode": Message("cosine of every pair of particles by the equation of γ"),
    "time": Message("time of the particle system, one row per case"),
}


def equiangular(seed: int = 0) -> "xarray.Dataset":
    """Particles start orthogonal and follow SA on the sphere with Q = K = V = I. All cosines stay equal.

    **Formula** With γ = ⟨x_1, x_2⟩ and the weight of another particle α = e^{βγ}/(e^β + (n−1)e^{βγ}), γ' = 2⟨x_1', x_2⟩ =
    2α[(1−γ²) + (n−2)γ(1−γ)] = 2e^{βγ}(1−γ)((n−1)γ+1)/(e^β + (n−1)e^{βγ}). Hence t(γ = .9) = ∫ dγ/γ'.

    **Returns** t(γ = .9) by quadrature compared with the published times, and by the particles compared with the quadrature.

    **Source** Geshkovski, Letrouit, Polyanskiy and Rigollet 2023 (arXiv:2312.10794). Nothing is random, so `seed` is unused.
    """
    comparisons, rows = [], []
    for n, beta, published, end in CASES:
        times, cosine, ode = cosine_curves(n, beta, time_grid(end, N_STEPS))
        rows.append((times, cosine, ode))
        case_name, predicted_time = f"t(γ = .9), n = {n}, β = {beta:g}", predicted_crossing_time(n, beta)
        comparisons.append(Comparison(f"{case_name}: equation", predicted_time, published, "published"))
        comparisons.append(
            Comparison(f"{case_name}: particles", particle_crossing_time(times, cosine), predicted_time, "∫ dγ/γ'")
        )
    columns = [(("case", "time_index"), torch.stack(column)) for column in zip(*rows, strict=True)]
    curves = dict(zip(("time", "cosine", "cosine_ode"), columns, strict=True))
    coords = {"case": [f"n = {n}, β = {beta:g}" for n, beta, *_ in CASES]}
    return as_dataset(comparisons, curves, DEFINITIONS, coords, {"steps": N_STEPS, "level": TARGET_COSINE})


def cosine_curves(n: int, beta: float, times: Curve) -> tuple[Curve, Curve, Curve]:
    """The times, and the cosine of a pair at all times by particles and by the equation."""
    path = evolve(sphere_velocity(dot_product_attention(beta)), torch.eye(n, dtype=torch.float64), times, normalise)
    ode = evolve(lambda t, gamma: cosine_rate(gamma, n, beta), torch.zeros(1, 1, dtype=torch.float64), times)
    return times, (path[:, 0] * path[:, 1]).sum(-1), ode[:, 0, 0]


def particle_crossing_time(times: Curve, cosine: Curve) -> float:
    """t(γ = .9) of the particles. 1 − γ decays as e^{−ct}, so its logarithm is interpolated linearly."""
    return crossing_time(times, -(1 - cosine).log(), -math.log(1 - TARGET_COSINE))


def predicted_crossing_time(n: int, beta: float) -> float:
    """t(γ = .9) from orthogonal particles, ∫ dγ/γ'."""
    return integrate(lambda gamma: 1 / cosine_rate(gamma, n, beta), 0.0, TARGET_COSINE)


def cosine_rate(gamma: Float[Tensor, "*any"], n: int, beta: float) -> Float[Tensor, "*any"]:
    """γ' of n equiangular particles."""
    alpha = 1 / (torch.exp(beta * (1 - gamma)) + n - 1)
    return 2 * alpha * (1 - gamma) * ((n - 1) * gamma + 1)
