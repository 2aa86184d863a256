"""Attention without a norm: rescaled tokens converge to corners of a polytope or to two hyperplanes."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.theory.particles import (
    Particles,
    dot_product_attention,
    evolve,
    rescaled_velocity,
    standard_normal,
    time_grid,
)
from rheoscope.theory.predictions import Comparison, as_dataset

if TYPE_CHECKING:
    import xarray

N, D, END_TIME, N_STEPS = 40, 2, 8.0, 80
SADDLE_EIGENVALUES = (1.0, -0.5)
"""The eigenvalues of V: one positive, one negative."""
DEFINITIONS = {
    "corners": Message("z of every token, V = I"),
    "planes": Message("z of every token, V = diag(1, −½)"),
    "to_limit": Message("median distance of the tokens from their limits, V = I"),
}


def free_space(seed: int = 0) -> "xarray.Dataset":
    """x' = Σ_j α_ij V x_j with scores ⟨x_i, x_j⟩ (Q = K = I), in the coordinates z = x e^{−tV}.

    **Formula** For V = I, z_i' = Σ_j α_ij(t)(z_j − z_i) with scores e^{2t}⟨z_i, z_j⟩. Attention becomes a choice of the best key. A limit
    z is its own best key, ‖z‖² = max_j ⟨z, z_j⟩, and generically a corner. A token whose best key is the corner c follows z' = c − z,
    so its distance decays as e^{−t}. For V = diag(1, −½) only the first coordinate matters. It takes at most three values, and a
    token that is not at 0 ends at the largest or the smallest.

    **Returns** the mean over tokens of ‖z‖²/max_j ⟨z, z_j⟩ (expected 1), the decay rate of the median distance (expected 1), and the
    number of values of the first coordinate in the second case (expected 2).

    **Source** Geshkovski, Letrouit, Polyanskiy and Rigollet 2023 (arXiv:2305.05465).
    """
    start, times = standard_normal(seed, N, D), time_grid(END_TIME, N_STEPS)
    corners = evolve(rescaled_velocity(dot_product_attention(1.0), torch.eye(D, dtype=torch.float64)), start, times)
    planes = evolve(
        rescaled_velocity(dot_product_attention(1.0), torch.tensor(SADDLE_EIGENVALUES, dtype=torch.float64).diag()),
        start,
        times,
    )
    distance_to_limit = (corners - best_keys(corners[-1])).norm(dim=-1).median(-1).values
    is_late = (times >= END_TIME / 2) & (times <= 0.9 * END_TIME)
    decay_rate = float(
        -torch.linalg.lstsq(
            torch.stack([times[is_late], torch.ones_like(times[is_late])], -1),
            distance_to_limit[is_late].log()[:, None],
        ).solution[0]
    )
    comparisons = [
        Comparison(
            "‖z‖² / max⟨z, z_j⟩, mean over tokens, V = I", float(self_match_ratio(corners[-1]).mean()), 1.0, "limit set"
        ),
        Comparison("decay rate of the distance to the corner, V = I", decay_rate, 1.0, "z' = c − z"),
        Comparison(
            "values of the first coordinate, V = diag(1, −½)",
            float(count_groups(planes[-1, :, 0])),
            2.0,
            "largest and smallest",
        ),
    ]
    curves = {
        "corners": (("time", "token", "coordinate"), corners),
        "planes": (("time", "token", "coordinate"), planes),
        "to_limit": (("time",), distance_to_limit),
    }
    return as_dataset(
        comparisons, curves, DEFINITIONS, {"time": times.numpy()}, {"n": N, "d": D, "end": END_TIME, "seed": seed}
    )


def self_match_ratio(z: Particles) -> Float[Tensor, " n"]:
    """‖z‖² divided by the largest inner product, which is 1 if a token is its own best key."""
    return z.square().sum(-1) / (z @ z.mT).amax(-1)


def best_keys(z: Particles) -> Particles:
    """The best key of every token."""
    return z[(z @ z.mT).argmax(-1)]


def count_groups(values: Float[Tensor, " n"], min_gap: float = 0.05) -> int:
    """The number of groups of values, separated by gaps of more than `min_gap` of their range."""
    sorted_values = values.sort().values
    return 1 + int((sorted_values.diff() > min_gap * (sorted_values[-1] - sorted_values[0])).sum())
