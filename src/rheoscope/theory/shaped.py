"""In a deep stack softmax makes all tokens alike; shaped attention keeps their angles for a thousand layers."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.normaliser.domain import Normaliser
from rheoscope.attention.normaliser.shaped import Shaped
from rheoscope.attention.normaliser.softmax import Softmax
from rheoscope.theory.particles import drawn
from rheoscope.theory.predictions import Number, as_dataset

if TYPE_CHECKING:
    import xarray

TOKENS, RHO, DEPTH, HEADS, TAU, BRANCH = 16, 0.2, 1000, 8, 10.0, 0.2
"""BRANCH is the share γ² of the attention branch beside the skip's λ² = 1 − γ²; TAU the temperature of the scores."""
SHOWN = (10, 100, 1000)
DEFINITIONS = {
    "correlation": "mean correlation of two tokens after every layer",
    "correlation_uniform": "the same under attention that looks everywhere equally, in closed form",
}
Table = Float[Tensor, "n n"]


def shaped(seed: int = 0) -> "xarray.Dataset":
    """Tokens of unbounded width pass through a thousand layers X ← λX + γ A X W, W drawn anew: what becomes of their angles?

    **Formula** Width averages W out: the covariances of tokens obey Σ ← λ²Σ + γ² E[AΣAᵀ], with Gaussian scores of covariance
    Σ_ik Σ_jl/τ² (Q and K drawn). Here E is a mean over drawn heads, each with its mirror image −Y. Softmax of weak scores is
    nearly uniform: with ρ the correlation and s = (1 + (n−1)ρ)/n, ρ ← (λ²ρ + γ²s)/(λ² + γ²s), which goes to 1. Shaped
    attention is I + Δ with Δ = YP/n to first order, P = I − 11ᵀ/n: then E[ΔΣΔᵀ] = Σ tr(ΣPΣP)/(nτ)², a multiple of Σ, and
    E[Δ] vanishes to second order between tokens at equal angles: the correlation stays ρ.

    **Numbers** the correlation after 10, 100 and 1000 layers: softmax against the recursion above, shaped against ρ.

    **Source** Noci et al. 2022 (arXiv:2206.03126) for the collapse; Noci et al. 2023 (arXiv:2306.17759) for shaped attention.
    """
    rules = {"softmax": Softmax(), "shaped": Shaped()}
    noise = drawn(seed, DEPTH, HEADS, TOKENS, TOKENS)
    seen = torch.stack([correlations(rule, noise) for rule in rules.values()])
    uniform = uniform_correlations()
    due = {"softmax": uniform, "shaped": torch.full_like(uniform, RHO)}
    numbers = [
        Number(f"correlation after {depth} layers, {name}", float(seen[at, depth]), float(due[name][depth]), why)
        for at, (name, why) in enumerate({"softmax": "recursion", "shaped": "stays ρ"}.items())
        for depth in SHOWN
    ]
    curves = {"correlation": (("normaliser", "layer"), seen), "correlation_uniform": (("layer",), uniform)}
    settings = {
        "tokens": TOKENS,
        "rho": RHO,
        "depth": DEPTH,
        "heads": HEADS,
        "tau": TAU,
        "branch": BRANCH,
        "seed": seed,
    }
    return as_dataset(numbers, curves, DEFINITIONS, {"normaliser": list(rules)}, settings)


def correlations(rule: Normaliser, noise: Float[Tensor, "layer h n n"]) -> Float[Tensor, " layers"]:
    """Mean correlation of two tokens after 0, 1, …, DEPTH layers."""
    seen = [torch.full((TOKENS, TOKENS), RHO, dtype=torch.float64).fill_diagonal_(1)]
    for heads in noise:
        seen.append(layer(seen[-1], rule, heads))
    return mean_correlation(torch.stack(seen))


def layer(S: Table, rule: Normaliser, noise: Float[Tensor, "h n n"]) -> Table:
    """Σ ← λ²Σ + γ² mean_h AΣAᵀ, the scores Y = L Z Lᵀ/τ with LLᵀ = Σ."""
    values, vectors = torch.linalg.eigh(S)
    root = vectors * values.clamp(min=0).sqrt()
    Y = root @ noise @ root.mT / TAU
    A = rule(torch.cat([Y, -Y])[None])[0]
    return (1 - BRANCH) * S + BRANCH * (A @ S @ A.mT).mean(0)


def mean_correlation(S: Float[Tensor, "*any n n"]) -> Float[Tensor, "*any"]:
    scale = S.diagonal(dim1=-2, dim2=-1).sqrt()
    table = S / (scale[..., None] * scale[..., None, :])
    n = S.shape[-1]
    return (table.sum((-2, -1)) - n) / (n * (n - 1))


def uniform_correlations() -> Float[Tensor, " layer"]:
    """ρ ← (λ²ρ + γ²s)/(λ² + γ²s), from ρ."""
    seen = [RHO]
    for _ in range(DEPTH):
        read = BRANCH * (1 + (TOKENS - 1) * seen[-1]) / TOKENS
        seen.append(((1 - BRANCH) * seen[-1] + read) / (1 - BRANCH + read))
    return torch.tensor(seen, dtype=torch.float64)
