"""Metric attention as a heat kernel: a narrow bandwidth gives diffusion with drift toward dense regions."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.definition import reference_attention
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.score import Distance
from rheoscope.messages.message import Message
from rheoscope.theory.predictions import Comparison, as_dataset

if TYPE_CHECKING:
    import xarray

N, BANDWIDTHS = 20_000, (0.1, 0.03, 0.002, 0.001)
CENTRES, WIDTH = (-1.2, 1.0), 0.7
DEFINITIONS = {
    "change": Message("(Sf − f)/ε for f = sin x, by metric attention over the tokens"),
    "limit": Message("½(f'' + 2 (log p)' f')"),
    "density": Message("density p of the tokens, a mixture of two Gaussians"),
}
GridValues = Float[Tensor, " x"]


def heat(seed: int = 0) -> "xarray.Dataset":
    """Tokens on a line with density p carry f = sin. Metric attention with bandwidth ε averages f: Sf = Σ_j α_ij f(x_j).

    **Formula** α_ij ∝ e^{−(x_i−x_j)²/2ε}. With y = x + √ε u and standard normal u, the kernel integral of pf is pf + (ε/2)(pf)'' and
    that of p is p + (ε/2)p''. So Sf = f + (ε/2)[(pf)'' − f p'']/p + O(ε²), and (Sf − f)/ε → ½(f'' + 2 (log p)' f').

    **Returns** the fitted coefficients of f'' and of (log p)' f' at the smallest ε (expected ½ and 1), the order of the error in ε
    (expected 1), and the relative error at the smallest ε (expected 0).

    **Source** Coifman and Lafon 2006 (diffusion maps, α = 0); Sander et al. 2022 (arXiv:2110.11773) for attention. Tokens are the
    quantiles of p, so nothing is random and `seed` is unused.
    """
    x = torch.linspace(-2.2, 2.0, 85, dtype=torch.float64)
    tokens = quantiles(N)
    changes = torch.stack([scaled_change(x, tokens, epsilon) for epsilon in BANDWIDTHS])
    terms = torch.stack([-x.sin(), log_density_slope(x) * x.cos()])
    limit = 0.5 * terms[0] + terms[1]
    second_order, drift = torch.linalg.lstsq(terms.mT, changes[-1][:, None]).solution[:, 0].tolist()
    error = (changes - limit).norm(dim=-1) / limit.norm()
    error_order = float((error[-2] / error[-1]).log()) / float(torch.tensor(BANDWIDTHS[-2] / BANDWIDTHS[-1]).log())
    comparisons = [
        Comparison("coefficient of f''", second_order, 0.5, "derived"),
        Comparison("coefficient of (log p)' f'", drift, 1.0, "derived"),
        Comparison("order of the error in ε", error_order, 1.0, "next order of the expansion"),
        Comparison(f"relative error at ε = {BANDWIDTHS[-1]:g}", float(error[-1]), 0.0, "limit ε → 0"),
    ]
    curves = {"change": (("epsilon", "x"), changes), "limit": (("x",), limit), "density": (("x",), density(x))}
    return as_dataset(comparisons, curves, DEFINITIONS, {"x": x.numpy(), "epsilon": list(BANDWIDTHS)}, {"n": N})


def scaled_change(x: GridValues, tokens: Float[Tensor, " n"], epsilon: float) -> GridValues:
    """(Sf − f)/ε at x."""
    metric = Mechanism(Distance(scale=0.5 / epsilon))
    queries, keys = x[None, None, :, None], tokens[None, None, :, None]
    return (reference_attention(metric, queries, keys, keys.sin())[0][0, 0, :, 0] - x.sin()) / epsilon


def mixture_components(x: GridValues) -> Float[Tensor, "2 x"]:
    """The two components of p, with equal weights."""
    standardised = (x - torch.tensor(CENTRES, dtype=x.dtype)[:, None]) / WIDTH
    return torch.exp(-standardised.square() / 2) / (len(CENTRES) * WIDTH * (2 * torch.pi) ** 0.5)


def density(x: GridValues) -> GridValues:
    return mixture_components(x).sum(0)


def log_density_slope(x: GridValues) -> GridValues:
    """(log p)'."""
    component_slopes = (torch.tensor(CENTRES, dtype=x.dtype)[:, None] - x) / WIDTH**2
    return (mixture_components(x) * component_slopes).sum(0) / density(x)


def quantiles(n: int) -> Float[Tensor, " {n}"]:
    """n tokens with density p, the (k − ½)/n quantiles, by bisection."""
    level = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    low, high = torch.full_like(level, -9.0), torch.full_like(level, 9.0)
    for _ in range(50):
        middle = (low + high) / 2
        below = torch.special.ndtr((middle - torch.tensor(CENTRES, dtype=low.dtype)[:, None]) / WIDTH).mean(0) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2
