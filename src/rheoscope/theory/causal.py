"""Causal attention on the sphere: the first token never moves, and all other tokens converge to it."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.mask import Causal
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.score import Gram
from rheoscope.messages.message import Message
from rheoscope.theory.particles import (
    crossing_time,
    evolve,
    integrate,
    normalise,
    sphere_velocity,
    standard_normal,
    time_grid,
)
from rheoscope.theory.predictions import Comparison, as_dataset

if TYPE_CHECKING:
    import xarray

N, D, BETA, END_TIME, N_STEPS, TARGET_COSINE = 24, 8, 2.0, 20.0, 160, 0.99
DEFINITIONS = {
    "cosine": Message("cosine of every token with the first token"),
    "displacement": Message("distance of the first token from its initial position"),
}


def causal(seed: int = 0) -> "xarray.Dataset":
    """Self-attention on the sphere with Q = K = V = I, where a token attends to itself and to earlier tokens.

    **Formula** The first token attends only to itself, so x_1' = P_{x_1} x_1 = 0. The second token has γ = ⟨x_1, x_2⟩ with
    γ' = (1−γ²)/(1 + e^{β(1−γ)}). It reaches γ = .99 after the time ∫ (1 + e^{β(1−γ)})/(1−γ²) dγ. The other tokens follow one after
    the other, and all converge to x_1.

    **Returns** the displacement of the first token (expected 0), the time of the second token compared with the integral, and the mean
    cosine with x_1 at the end (expected 1).

    **Source** Karagodin, Polyanskiy and Rigollet 2024 (arXiv:2411.04990).
    """
    start, times = normalise(standard_normal(seed, N, D)), time_grid(END_TIME, N_STEPS)
    path = evolve(sphere_velocity(Mechanism(Gram(scale=BETA), Causal())), start, times, normalise)
    cosine = path @ start[0]
    comparisons = [
        Comparison(
            "displacement of the first token", float((path[:, 0] - start[0]).norm(dim=-1).max()), 0.0, "P_x x = 0"
        ),
        Comparison(
            "time of the second token to cosine .99",
            crossing_time(times, cosine[:, 1], TARGET_COSINE),
            arrival_time(float(cosine[0, 1])),
            "∫ dγ/γ'",
        ),
        Comparison("mean cosine with the first token at the end", float(cosine[-1].mean()), 1.0, "all converge to x₁"),
    ]
    curves = {"cosine": (("time", "token"), cosine), "displacement": (("time",), (path[:, 0] - start[0]).norm(dim=-1))}
    return as_dataset(
        comparisons, curves, DEFINITIONS, {"time": times.numpy()}, {"n": N, "d": D, "beta": BETA, "seed": seed}
    )


def arrival_time(gamma: float) -> float:
    """The time in which the second token moves from the cosine gamma to the target cosine."""
    return integrate(inverse_rate, gamma, TARGET_COSINE)


def inverse_rate(gamma: Float[Tensor, " q"]) -> Float[Tensor, " q"]:
    """1/γ' of the second token."""
    return (1 + torch.exp(BETA * (1 - gamma))) / (1 - gamma.square())
