"""Attention by nearness is a heat kernel: with a narrow bandwidth it diffuses, and drifts to where tokens are dense."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.definition import reference
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.score import Distance
from rheoscope.theory.predictions import Number, as_dataset

if TYPE_CHECKING:
    import xarray

N, BANDWIDTHS = 20_000, (0.1, 0.03, 0.002, 0.001)
CENTRES, WIDTH = (-1.2, 1.0), 0.7
DEFINITIONS = {
    "moved": "(Sf − f)/ε of f = sin x by metric attention over the tokens",
    "limit": "½(f'' + 2 (log p)' f')",
    "density": "p, a mixture of two Gaussians, from which the tokens are",
}
Line = Float[Tensor, " x"]


def heat(seed: int = 0) -> "xarray.Dataset":
    """Tokens on a line with density p carry f = sin; metric attention with bandwidth ε averages f: Sf = Σ_j α_ij f(x_j).

    **Formula** α_ij ∝ e^{−(x_i−x_j)²/2ε}. With y = x + √ε u, u standard normal: ∫ p f over the kernel is pf + (ε/2)(pf)'' and
    ∫ p is p + (ε/2)p'', so Sf = f + (ε/2)[(pf)'' − f p'']/p + O(ε²) and (Sf − f)/ε → ½(f'' + 2 (log p)' f').

    **Numbers** the coefficients of f'' and of (log p)' f' fitted at the least ε, ½ and 1; the power of ε with which the
    error falls, 1; the relative error at the least ε, 0.

    **Source** Coifman and Lafon 2006 (diffusion maps, α = 0); Sander et al. 2022 (arXiv:2110.11773) for attention. Tokens
    are the quantiles of p, so that nothing is random: `seed` is not read.
    """
    x = torch.linspace(-2.2, 2.0, 85, dtype=torch.float64)
    tokens = quantiles(N)
    seen = torch.stack([smoothed(x, tokens, epsilon) for epsilon in BANDWIDTHS])
    terms = torch.stack([-x.sin(), slope(x) * x.cos()])
    limit = 0.5 * terms[0] + terms[1]
    second, drift = torch.linalg.lstsq(terms.mT, seen[-1][:, None]).solution[:, 0].tolist()
    error = (seen - limit).norm(dim=-1) / limit.norm()
    power = float((error[-2] / error[-1]).log()) / float(torch.tensor(BANDWIDTHS[-2] / BANDWIDTHS[-1]).log())
    numbers = [
        Number("coefficient of f''", second, 0.5, "derived"),
        Number("coefficient of (log p)' f'", drift, 1.0, "derived"),
        Number("power of ε in the error", power, 1.0, "next order of the expansion"),
        Number(f"relative error at ε = {BANDWIDTHS[-1]:g}", float(error[-1]), 0.0, "limit ε → 0"),
    ]
    curves = {"moved": (("epsilon", "x"), seen), "limit": (("x",), limit), "density": (("x",), density(x))}
    return as_dataset(numbers, curves, DEFINITIONS, {"x": x.numpy(), "epsilon": list(BANDWIDTHS)}, {"n": N})


def smoothed(x: Line, tokens: Float[Tensor, " n"], epsilon: float) -> Line:
    """(Sf − f)/ε at x."""
    metric = Mechanism(Distance(scale=0.5 / epsilon))
    at, keys = x[None, None, :, None], tokens[None, None, :, None]
    return (reference(metric, at, keys, keys.sin())[0][0, 0, :, 0] - x.sin()) / epsilon


def parts(x: Line) -> Float[Tensor, "2 x"]:
    """The two Gaussians of p, of equal mass."""
    away = (x - torch.tensor(CENTRES, dtype=x.dtype)[:, None]) / WIDTH
    return torch.exp(-away.square() / 2) / (len(CENTRES) * WIDTH * (2 * torch.pi) ** 0.5)


def density(x: Line) -> Line:
    return parts(x).sum(0)


def slope(x: Line) -> Line:
    """(log p)'."""
    towards = (torch.tensor(CENTRES, dtype=x.dtype)[:, None] - x) / WIDTH**2
    return (parts(x) * towards).sum(0) / density(x)


def quantiles(n: int) -> Float[Tensor, " {n}"]:
    """n tokens with density p: the (k − ½)/n quantiles, by bisection."""
    level = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    low, high = torch.full_like(level, -9.0), torch.full_like(level, 9.0)
    for _ in range(50):
        middle = (low + high) / 2
        below = torch.special.ndtr((middle - torch.tensor(CENTRES, dtype=low.dtype)[:, None]) / WIDTH).mean(0) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2
