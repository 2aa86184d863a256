"""Under a causal mask the first token leads: it never moves, and all others come to it."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.mask import Causal
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.score import Gram
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
    "cosine": "cosine of every token with the first one",
    "moved": "distance of the first token from its start",
}


def causal(seed: int = 0) -> "xarray.Dataset":
    """SA on the sphere with Q = K = V = I, where a token sees itself and those before it.

    **Formula** The first sees itself alone: x_1' = P_{x_1} x_1 = 0. The second has γ = ⟨x_1, x_2⟩ with
    γ' = (1−γ²)/(1 + e^{β(1−γ)}), so it takes ∫ (1 + e^{β(1−γ)})/(1−γ²) dγ from its start to γ = .99. Then the third follows the
    two, and so on: all end at x_1.

    **Numbers** the way of the first, 0; the second's time against the integral; the mean cosine with x_1 at the end, 1.

    **Source** Karagodin, Polyanskiy and Rigollet 2024 (arXiv:2411.04990).
    """
    start, times = normalise(standard_normal(seed, N, D)), time_grid(END_TIME, N_STEPS)
    path = evolve(sphere_velocity(Mechanism(Gram(scale=BETA), Causal())), start, times, normalise)
    cosine = path @ start[0]
    comparisons = [
        Comparison("way of the first token", float((path[:, 0] - start[0]).norm(dim=-1).max()), 0.0, "P_x x = 0"),
        Comparison(
            "time of the second to cosine .99",
            crossing_time(times, cosine[:, 1], TARGET_COSINE),
            arrival_time(float(cosine[0, 1])),
            "∫ dγ/γ'",
        ),
        Comparison("mean cosine with the first at the end", float(cosine[-1].mean()), 1.0, "all come to x₁"),
    ]
    curves = {"cosine": (("time", "token"), cosine), "moved": (("time",), (path[:, 0] - start[0]).norm(dim=-1))}
    return as_dataset(
        comparisons, curves, DEFINITIONS, {"time": times.numpy()}, {"n": N, "d": D, "beta": BETA, "seed": seed}
    )


def arrival_time(gamma: float) -> float:
    """How long the second takes from a cosine to the level."""
    return integrate(lambda g: inverse_rate(g), gamma, TARGET_COSINE)


def inverse_rate(gamma: Float[Tensor, " q"]) -> Float[Tensor, " q"]:
    """1/γ' of the second token."""
    return (1 + torch.exp(BETA * (1 - gamma))) / (1 - gamma.square())
