"""Doubly stochastic (Sinkhorn) attention: every token is read equally, and the flow is the heat equation."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.normaliser.sinkhorn import Sinkhorn
from rheoscope.attention.score import Distance
from rheoscope.messages.message import Message
from rheoscope.theory.particles import Particles, Velocity, attention_weights, evolve, time_grid
from rheoscope.theory.predictions import Comparison, as_dataset

if TYPE_CHECKING:
    import xarray

N, EPSILON, END_TIME, N_STEPS, ROUNDS = 240, 0.2, 0.5, 3, 60
DEFINITIONS = {
    "columns": Message("column sums of the initial weights, the total attention that each token receives"),
    "position": Message("initial positions of the tokens"),
    "variance": Message("variance of the tokens under the flow"),
    "variance_derived": Message("variance by the equation of a Gaussian cloud"),
}


def sinkformer(seed: int = 0) -> "xarray.Dataset":
    """A Gaussian cloud on a line moves away from its weighted mean, x' = (2/ε)(x − Σ_j α_ij x_j).

    The weights α are Sinkhorn or softmax weights of the score −(x_i − x_j)²/2ε.

    **Formula** Sinkhorn couples N(0, σ²) with itself by a Gaussian of covariance c. Its density ∝ e^{−(x−y)²/2ε} u(x)u(y) has precision
    −1/ε off the diagonal, so σ⁴ − c² = εc, c = √(σ⁴ + ε²/4) − ε/2 and Σ_j α_ij x_j = (c/σ²)x. Hence (σ²)' = (4/ε)(σ² − c) → 2 as ε → 0,
    the heat equation. Softmax gives Σ_j α_ij x_j = σ²x/(σ²+ε) and (σ²)' = 4σ²/(σ²+ε) → 4.

    **Returns** the largest deviation of a column sum from 1 under Sinkhorn (expected 0), and the final variance of both flows compared
    with these equations.

    **Source** Sander, Ablin, Blondel and Peyré 2022 (arXiv:2110.11773). Tokens are quantiles, so `seed` is unused.
    """
    level = (torch.arange(N, dtype=torch.float64) + 0.5) / N
    x = torch.special.ndtri(level)[:, None]
    x = x / x.square().mean().sqrt()
    times, metric = time_grid(END_TIME, N_STEPS), Distance(scale=0.5 / EPSILON)
    mechanisms = {"Sinkhorn": Mechanism(metric, normaliser=Sinkhorn(ROUNDS)), "softmax": Mechanism(metric)}
    column_sums = torch.stack([attention_weights(mechanism, x).sum(0) for mechanism in mechanisms.values()])
    variances = torch.stack(
        [evolve(spreading_velocity(mechanism), x, times).square().mean((1, 2)) for mechanism in mechanisms.values()]
    )
    expected = torch.stack(
        [evolve(variance_rate(name), torch.ones(1, 1, dtype=torch.float64), times)[:, 0, 0] for name in mechanisms]
    )
    comparisons = [
        Comparison(
            "largest |column sum − 1|, Sinkhorn", float((column_sums[0] - 1).abs().max()), 0.0, "doubly stochastic"
        )
    ]
    comparisons += [
        Comparison(
            f"variance at t = {END_TIME:g}, {name}",
            float(variances[index, -1]),
            float(expected[index, -1]),
            "(σ²)' above",
        )
        for index, name in enumerate(mechanisms)
    ]
    curves = {
        "columns": (("normaliser", "token"), column_sums),
        "position": (("token",), x[:, 0]),
        "variance": (("normaliser", "time"), variances),
        "variance_derived": (("normaliser", "time"), expected),
    }
    contrast = {"largest |column sum − 1|, softmax": float((column_sums[1] - 1).abs().max())}
    coords = {"normaliser": list(mechanisms), "time": times.numpy()}
    return as_dataset(
        comparisons, curves, DEFINITIONS, coords, {"n": N, "epsilon": EPSILON, "rounds": ROUNDS}, contrast
    )


def spreading_velocity(mechanism: Mechanism) -> Velocity:
    """x' = (2/ε)(x − Σ_j α_ij x_j)."""

    def velocity(t: float, x: Particles) -> Particles:
        return 2 / EPSILON * (x - attention_weights(mechanism, x) @ x)

    return velocity


def variance_rate(name: str) -> Velocity:
    """(σ²)' of a Gaussian cloud under the named normaliser."""

    def sinkhorn_rate(t: float, variance: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return 4 / EPSILON * (variance + EPSILON / 2 - (variance.square() + EPSILON**2 / 4).sqrt())

    def softmax_rate(t: float, variance: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return 4 * variance / (variance + EPSILON)

    return {"Sinkhorn": sinkhorn_rate, "softmax": softmax_rate}[name]
