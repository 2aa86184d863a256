"""How sharp must attention be in a long text? At β = c log n one value of c divides collapse from stillness."""

import math
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.theory.particles import dot, unit, weights
from rheoscope.theory.predictions import Number, as_dataset

if TYPE_CHECKING:
    import xarray

RHO = 0.3
POWERS = (2, 4, 8, 16)
"""n = 10 to these."""
PARTICLES = 400
DEFINITIONS = {
    "cosine": "cosine of every pair of tokens after one step, by the formula for n tokens",
    "cosine_particles": f"the same of {PARTICLES} tokens under attention",
    "cosine_formula": f"the formula for {PARTICLES} tokens at the same c",
}


def long_context(seed: int = 0) -> "xarray.Dataset":
    """n unit tokens with every cosine ρ take one step of attention without a skip, at inverse temperature β = c log n.

    **Formula** The own weight is a = 1/(1 + (n−1)n^{−c(1−ρ)}). With y_i = a x_i + (1−a) m_i, m_i the mean of the others,
    ⟨m_i, x_i⟩ = ρ and ‖m_i‖² → ρ: ⟨y_i, y_j⟩ → ρ and ‖y_i‖² → ρ + a²(1−ρ). As n → ∞, a → 0, ½, 1 and the cosine of a pair
    becomes 1, 4ρ/(1+3ρ), ρ for c below, at and above 1/(1−ρ).

    **Numbers** the cosine at n = 10¹⁶ for c at .8, 1 and 1.2 of 1/(1−ρ) against the limit (the formula is kept in
    logarithms, so that n may be as large as one likes), and 400 tokens against the formula for n = 400.

    **Source** the transition of arXiv:2510.05554. Nothing is random: `seed` is not read.
    """
    critical = 1 / (1 - RHO)
    grid = torch.linspace(0.2, 1.8, 81, dtype=torch.float64) * critical
    few = torch.linspace(0.2, 1.8, 9, dtype=torch.float64) * critical
    seen = torch.stack([of_tokens(PARTICLES, float(c)) for c in few])
    formula = after(math.log(PARTICLES), few)
    limits = {0.8: 1.0, 1.0: 4 * RHO / (1 + 3 * RHO), 1.2: RHO}
    numbers = [
        Number(
            f"cosine at n = 10¹⁶, c = {share:g}/(1−ρ)",
            float(after(16 * math.log(10), torch.tensor([share * critical], dtype=torch.float64))),
            limit,
            "limit n → ∞",
        )
        for share, limit in limits.items()
    ]
    numbers += [
        Number(
            f"cosine of {PARTICLES} tokens, c = {float(few[at]) / critical:g}/(1−ρ)",
            float(seen[at]),
            float(formula[at]),
            "formula for n",
        )
        for at in (0, 4, 8)
    ]
    curves = {
        "cosine": (("n", "c"), torch.stack([after(power * math.log(10), grid) for power in POWERS])),
        "cosine_particles": (("c_particles",), seen),
        "cosine_formula": (("c_particles",), formula),
    }
    coords = {"n": [10.0**power for power in POWERS], "c": grid.numpy(), "c_particles": few.numpy()}
    return as_dataset(numbers, curves, DEFINITIONS, coords, {"rho": RHO, "critical": critical, "particles": PARTICLES})


def after(log_n: float, c: Float[Tensor, " c"]) -> Float[Tensor, " c"]:
    """The cosine of a pair after one step, n given by its logarithm; exact for every n."""
    others = log_n + math.log1p(-math.exp(-log_n))  # log(n − 1)
    a = torch.sigmoid(c * (1 - RHO) * log_n - others)
    b, one = 1 - a, math.exp(-others)  # one of the n − 1 others
    mean = RHO + one * (1 - RHO)  # ‖m_i‖²
    # ⟨m_i, m_j⟩: each of the two means lacks another token and holds n − 2 in common.
    means = RHO + one * (1 - one) * (1 - RHO)
    across = a * a * RHO + 2 * a * b * mean + b * b * means
    return across / (a * a + 2 * a * b * RHO + b * b * mean)


def of_tokens(n: int, c: float) -> Float[Tensor, ""]:
    """The same by attention on n tokens: a common direction, and one of its own for each."""
    x = torch.cat([torch.full((n, 1), RHO**0.5), (1 - RHO) ** 0.5 * torch.eye(n)], -1).double()
    x = unit(x)  # rounding of ρ aside they are unit already
    y = unit(weights(dot(c * math.log(n)), x) @ x)
    return y[0] @ y[1]
