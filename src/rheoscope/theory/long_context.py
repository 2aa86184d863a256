"""Attention over long contexts: at β = c log n a critical c separates collapse from no change."""

import math
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.theory.particles import attention_weights, dot_product_attention, normalise
from rheoscope.theory.predictions import Comparison, as_dataset

if TYPE_CHECKING:
    import xarray

RHO = 0.3
POWERS_OF_TEN = (2, 4, 8, 16)
"""The exponents of n = 10^k."""
N_PARTICLES = 400
DEFINITIONS = {
    "cosine": Message("cosine of every pair of n tokens after one step, by the formula"),
    "cosine_particles": Message("cosine of every pair of {n} tokens after one step of attention", n=N_PARTICLES),
    "cosine_formula": Message("cosine of every pair of {n} tokens at the same c, by the formula", n=N_PARTICLES),
}


def long_context(seed: int = 0) -> "xarray.Dataset":
    """n unit tokens with pairwise cosine ρ take one step of attention without a skip connection at β = c log n.

    **Formula** The weight of the own token is a = 1/(1 + (n−1)n^{−c(1−ρ)}). With y_i = a x_i + (1−a) m_i, where m_i is the mean of the
    other tokens, ⟨m_i, x_i⟩ = ρ and ‖m_i‖² → ρ. So ⟨y_i, y_j⟩ → ρ and ‖y_i‖² → ρ + a²(1−ρ). As n → ∞, a → 0, ½ or 1, and the cosine
    becomes 1, 4ρ/(1+3ρ) or ρ, for c below, at or above 1/(1−ρ).

    **Returns** the cosine at n = 10¹⁶ for c = .8, 1 and 1.2 times 1/(1−ρ) compared with the limit, and the cosine of 400 tokens
    compared with the formula for n = 400. The formula uses logarithms, so n can be arbitrarily large.

    **Source** the transition of arXiv:2510.05554. Nothing is random, so `seed` is unused.
    """
    critical = 1 / (1 - RHO)
    c_grid = torch.linspace(0.2, 1.8, 81, dtype=torch.float64) * critical
    particle_grid = torch.linspace(0.2, 1.8, 9, dtype=torch.float64) * critical
    measured = torch.stack([simulated_cosine(N_PARTICLES, float(c)) for c in particle_grid])
    predicted = cosine_after_step(math.log(N_PARTICLES), particle_grid)
    limits = {0.8: 1.0, 1.0: 4 * RHO / (1 + 3 * RHO), 1.2: RHO}
    comparisons = [
        Comparison(
            f"cosine at n = 10¹⁶, c = {fraction:g}/(1−ρ)",
            float(cosine_after_step(16 * math.log(10), torch.tensor([fraction * critical], dtype=torch.float64))),
            limit,
            "limit n → ∞",
        )
        for fraction, limit in limits.items()
    ]
    comparisons += [
        Comparison(
            f"cosine of {N_PARTICLES} tokens, c = {float(particle_grid[index]) / critical:g}/(1−ρ)",
            float(measured[index]),
            float(predicted[index]),
            "formula for n",
        )
        for index in (0, 4, 8)
    ]
    curves = {
        "cosine": (
            ("n", "c"),
            torch.stack([cosine_after_step(power * math.log(10), c_grid) for power in POWERS_OF_TEN]),
        ),
        "cosine_particles": (("c_particles",), measured),
        "cosine_formula": (("c_particles",), predicted),
    }
    coords = {"n": [10.0**power for power in POWERS_OF_TEN], "c": c_grid.numpy(), "c_particles": particle_grid.numpy()}
    return as_dataset(
        comparisons, curves, DEFINITIONS, coords, {"rho": RHO, "critical": critical, "particles": N_PARTICLES}
    )


def cosine_after_step(log_n: float, c: Float[Tensor, " c"]) -> Float[Tensor, " c"]:
    """The cosine of a pair after one step, exact for every n, which is given by its logarithm."""
    log_others = log_n + math.log1p(-math.exp(-log_n))  # log(n − 1)
    a = torch.sigmoid(c * (1 - RHO) * log_n - log_others)
    b, other_weight = 1 - a, math.exp(-log_others)  # 1/(n − 1)
    mean_square = RHO + other_weight * (1 - RHO)  # ‖m_i‖²
    # ⟨m_i, m_j⟩: each mean omits another token, and they share n − 2 tokens
    mean_product = RHO + other_weight * (1 - other_weight) * (1 - RHO)
    pair_product = a * a * RHO + 2 * a * b * mean_square + b * b * mean_product
    return pair_product / (a * a + 2 * a * b * RHO + b * b * mean_square)


def simulated_cosine(n: int, c: float) -> Float[Tensor, ""]:
    """The same by attention on n tokens, each with a common direction and a direction of its own."""
    x = torch.cat([torch.full((n, 1), RHO**0.5), (1 - RHO) ** 0.5 * torch.eye(n)], -1).double()
    x = normalise(x)  # removes the rounding of ρ
    y = normalise(attention_weights(dot_product_attention(c * math.log(n)), x) @ x)
    return y[0] @ y[1]
