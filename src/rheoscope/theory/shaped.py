"""Deep stacks: softmax attention makes tokens equal, shaped attention keeps their angles for a thousand layers."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.normaliser.domain import Normaliser
from rheoscope.attention.normaliser.shaped import Shaped
from rheoscope.attention.normaliser.softmax import Softmax
from rheoscope.messages.message import Message
from rheoscope.theory.particles import standard_normal
from rheoscope.theory.predictions import Comparison, as_dataset

if TYPE_CHECKING:
    import xarray

N_TOKENS, RHO, DEPTH, N_HEADS, TAU, BRANCH_FRACTION = 16, 0.2, 1000, 8, 10.0, 0.2
"""BRANCH_FRACTION is γ² of the attention branch, with λ² = 1 − γ² for the skip. TAU is the temperature of the scores."""
SHOWN_DEPTHS = (10, 100, 1000)
DEFINITIONS = {
    "correlation": Message("mean correlation of two tokens after every layer"),
    "correlation_uniform": Message("mean correlation of two tokens under uniform attention, in closed form"),
}
Covariance = Float[Tensor, "n n"]


def shaped(seed: int = 0) -> "xarray.Dataset":
    """Tokens of infinite width pass through a thousand layers X ← λX + γ A X W with random W. How do their angles change?

    **Formula** At infinite width the covariances of the tokens follow Σ ← λ²Σ + γ² E[AΣAᵀ], with Gaussian scores of covariance
    Σ_ik Σ_jl/τ². Here E is a mean over random heads, each with its mirror image −Y. Softmax of weak scores is nearly uniform. With the
    correlation ρ and s = (1 + (n−1)ρ)/n, ρ ← (λ²ρ + γ²s)/(λ² + γ²s), which tends to 1. Shaped attention is I + Δ with Δ = YP/n to first
    order, P = I − 11ᵀ/n. Then E[ΔΣΔᵀ] = Σ tr(ΣPΣP)/(nτ)² is a multiple of Σ. E[Δ] vanishes to second order between equiangular
    tokens, so the correlation stays ρ.

    **Returns** the correlation after 10, 100 and 1000 layers, for softmax compared with the recursion, for shaped attention with ρ.

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
    """The mean correlation of two tokens after 0, 1, …, DEPTH layers."""
    covariances = [torch.full((N_TOKENS, N_TOKENS), RHO, dtype=torch.float64).fill_diagonal_(1)]
    for head_noise in noise:
        covariances.append(next_covariance(covariances[-1], normaliser, head_noise))
    return mean_correlation(torch.stack(covariances))


def next_covariance(S: Covariance, normaliser: Normaliser, noise: Float[Tensor, "h n n"]) -> Covariance:
    """Σ ← λ²Σ + γ² mean_h AΣAᵀ with scores Y = L Z Lᵀ/τ, where LLᵀ = Σ."""
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
    """The recursion ρ ← (λ²ρ + γ²s)/(λ² + γ²s), starting at ρ."""
    values = [RHO]
    for _ in range(DEPTH):
        attended = BRANCH_FRACTION * (1 + (N_TOKENS - 1) * values[-1]) / N_TOKENS
        values.append(((1 - BRANCH_FRACTION) * values[-1] + attended) / (1 - BRANCH_FRACTION + attended))
    return torch.tensor(values, dtype=torch.float64)
