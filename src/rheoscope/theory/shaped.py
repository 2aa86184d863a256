"""In a deep stack softmax makes all tokens alike; shaped attention keeps their angles for a thousand layers."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.normaliser.domain import Normaliser
from rheoscope.attention.normaliser.shaped import Shaped
from rheoscope.attention.normaliser.softmax import Softmax
from rheoscope.theory.particles import standard_normal
from rheoscope.theory.predictions import Comparison, as_dataset

if TYPE_CHECKING:
    import xarray

N_TOKENS, RHO, DEPTH, N_HEADS, TAU, BRANCH_FRACTION = 16, 0.2, 1000, 8, 10.0, 0.2
"""BRANCH is the share γ² of the attention branch beside the skip's λ² = 1 − γ²; TAU the temperature of the scores."""
SHOWN_DEPTHS = (10, 100, 1000)
DEFINITIONS = {
    "correlation": "mean correlation of two tokens after every layer",
    "correlation_uniform": "the same under attention that looks everywhere equally, in closed form",
}
Covariance = Float[Tensor, "n n"]


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
    normalisers = {"softmax": Softmax(), "shaped": Shaped()}
    noise = standard_normal(seed, DEPTH, N_HEADS, N_TOKENS, N_TOKENS)
    measured = torch.stack([simulated_correlations(normaliser, noise) for normaliser in normalisers.values()])
    uniform_correlation = uniform_correlations()
    expected = {"softmax": uniform_correlation, "shaped": torch.full_like(uniform_correlation, RHO)}
    comparisons = [
        Comparison(
            f"correlation after {depth} layers, {name}",
            float(measured[index, depth]),
            float(expected[name][depth]),
            reason,
        )
        for index, (name, reason) in enumerate({"softmax": "recursion", "shaped": "stays ρ"}.items())
        for depth in SHOWN_DEPTHS
    ]
    curves = {
        "correlation": (("normaliser", "layer"), measured),
        "correlation_uniform": (("layer",), uniform_correlation),
    }
    settings = {
        "tokens": N_TOKENS,
        "rho": RHO,
        "depth": DEPTH,
        "heads": N_HEADS,
        "tau": TAU,
        "branch": BRANCH_FRACTION,
        "seed": seed,
    }
    return as_dataset(comparisons, curves, DEFINITIONS, {"normaliser": list(normalisers)}, settings)


def simulated_correlations(normaliser: Normaliser, noise: Float[Tensor, "layer h n n"]) -> Float[Tensor, " layers"]:
    """Mean correlation of two tokens after 0, 1, …, DEPTH layers."""
    covariances = [torch.full((N_TOKENS, N_TOKENS), RHO, dtype=torch.float64).fill_diagonal_(1)]
    for head_noise in noise:
        covariances.append(next_covariance(covariances[-1], normaliser, head_noise))
    return mean_correlation(torch.stack(covariances))


def next_covariance(S: Covariance, normaliser: Normaliser, noise: Float[Tensor, "h n n"]) -> Covariance:
    """Σ ← λ²Σ + γ² mean_h AΣAᵀ, the scores Y = L Z Lᵀ/τ with LLᵀ = Σ."""
    eigenvalues, eigenvectors = torch.linalg.eigh(S)
    root = eigenvectors * eigenvalues.clamp(min=0).sqrt()
    Y = root @ noise @ root.mT / TAU
    A = normaliser(torch.cat([Y, -Y])[None])[0]
    return (1 - BRANCH_FRACTION) * S + BRANCH_FRACTION * (A @ S @ A.mT).mean(0)


def mean_correlation(S: Float[Tensor, "*any n n"]) -> Float[Tensor, "*any"]:
    scale = S.diagonal(dim1=-2, dim2=-1).sqrt()
    correlation = S / (scale[..., None] * scale[..., None, :])
    n = S.shape[-1]
    return (correlation.sum((-2, -1)) - n) / (n * (n - 1))


def uniform_correlations() -> Float[Tensor, " layer"]:
    """ρ ← (λ²ρ + γ²s)/(λ² + γ²s), from ρ."""
    values = [RHO]
    for _ in range(DEPTH):
        attended = BRANCH_FRACTION * (1 + (N_TOKENS - 1) * values[-1]) / N_TOKENS
        values.append(((1 - BRANCH_FRACTION) * values[-1] + attended) / (1 - BRANCH_FRACTION + attended))
    return torch.tensor(values, dtype=torch.float64)
