"""Doubly stochastic attention: every token is read as much as it reads, and the flow is heat."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.normaliser.sinkhorn import Sinkhorn
from rheoscope.attention.score import Distance
from rheoscope.theory.particles import Particles, Velocity, evolve, until, weights
from rheoscope.theory.predictions import Number, as_dataset

if TYPE_CHECKING:
    import xarray

N, EPSILON, END, STEPS, ROUNDS = 240, 0.2, 0.5, 3, 60
DEFINITIONS = {
    "columns": "column sums of the weights at the start: how much each token is read",
    "place": "where the tokens stand at the start",
    "variance": "of the tokens under the flow",
    "variance_derived": "the same by the equation of a Gaussian cloud",
}


def sinkformer(seed: int = 0) -> "xarray.Dataset":
    """A Gaussian cloud on a line moves away from its weighted mean, x' = (2/ε)(x − Σ_j α_ij x_j), α by Sinkhorn or softmax
    of the L2 score −(x_i − x_j)²/2ε.

    **Formula** Sinkhorn couples N(0, σ²) with itself by a Gaussian of covariance c: its density ∝ e^{−(x−y)²/2ε} u(x)u(y)
    has precision −1/ε off the diagonal, so σ⁴ − c² = εc, c = √(σ⁴ + ε²/4) − ε/2, and Σ_j α_ij x_j = (c/σ²)x. Hence
    (σ²)' = (4/ε)(σ² − c) → 2 as ε → 0: the heat equation. Softmax alone gives Σ_j α_ij x_j = σ²x/(σ²+ε) and
    (σ²)' = 4σ²/(σ²+ε) → 4.

    **Numbers** the largest distance of a column sum from 1 under Sinkhorn, 0; the variance at the end under both, against
    these equations.

    **Source** Sander, Ablin, Blondel and Peyré 2022 (arXiv:2110.11773). Tokens are quantiles: `seed` is not read.
    """
    level = (torch.arange(N, dtype=torch.float64) + 0.5) / N
    x = torch.special.ndtri(level)[:, None]
    x = x / x.square().mean().sqrt()
    times, metric = until(END, STEPS), Distance(scale=0.5 / EPSILON)
    rules = {"Sinkhorn": Mechanism(metric, normaliser=Sinkhorn(ROUNDS)), "softmax": Mechanism(metric)}
    columns = torch.stack([weights(rule, x).sum(0) for rule in rules.values()])
    seen = torch.stack([evolve(spreading(rule), x, times).square().mean((1, 2)) for rule in rules.values()])
    due = torch.stack([evolve(growth(name), torch.ones(1, 1, dtype=torch.float64), times)[:, 0, 0] for name in rules])
    numbers = [
        Number("largest |column sum − 1|, Sinkhorn", float((columns[0] - 1).abs().max()), 0.0, "doubly stochastic")
    ]
    numbers += [
        Number(f"variance at t = {END:g}, {name}", float(seen[at, -1]), float(due[at, -1]), "(σ²)' above")
        for at, name in enumerate(rules)
    ]
    curves = {
        "columns": (("normaliser", "token"), columns),
        "place": (("token",), x[:, 0]),
        "variance": (("normaliser", "time"), seen),
        "variance_derived": (("normaliser", "time"), due),
    }
    contrast = {"largest |column sum − 1|, softmax": float((columns[1] - 1).abs().max())}
    coords = {"normaliser": list(rules), "time": times.numpy()}
    return as_dataset(numbers, curves, DEFINITIONS, coords, {"n": N, "epsilon": EPSILON, "rounds": ROUNDS}, contrast)


def spreading(rule: Mechanism) -> Velocity:
    """x' = (2/ε)(x − Σ_j α_ij x_j)."""

    def velocity(t: float, x: Particles) -> Particles:
        return 2 / EPSILON * (x - weights(rule, x) @ x)

    return velocity


def growth(name: str) -> Velocity:
    """(σ²)' of a Gaussian cloud."""

    def sinkhorn(t: float, variance: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return 4 / EPSILON * (variance + EPSILON / 2 - (variance.square() + EPSILON**2 / 4).sqrt())

    def softmax(t: float, variance: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return 4 * variance / (variance + EPSILON)

    return {"Sinkhorn": sinkhorn, "softmax": softmax}[name]
