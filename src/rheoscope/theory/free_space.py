"""Without a norm tokens run away; seen in z = x e^{−tV} they settle, generically on the corners of a polytope, or on two hyperplanes."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

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

N, D, END_TIME, N_STEPS = 40, 2, 8.0, 160
SADDLE_EIGENVALUES = (1.0, -0.5)
"""One eigenvalue of V that leads, and one that shrinks."""
DEFINITIONS = {
    "corners": "z of every token, V = I",
    "planes": "z of every token, V = diag(1, −½)",
    "to_limit": "median distance of the tokens from their place at the end, V = I",
}


def free_space(seed: int = 0) -> "xarray.Dataset":
    """x' = Σ_j α_ij V x_j with scores ⟨x_i, x_j⟩ (Q = K = I), watched in z = x e^{−tV}.

    **Formula** z_i' = Σ_j α_ij(t)(z_j − z_i) V with scores e^{2t}⟨z_i, z_j⟩ for V = I: attention becomes the choice of the best
    key, so that a limit z obeys ‖z‖² = max_j ⟨z, z_j⟩ (it is its own best key: generically a corner, else 0 or a point of a
    face). A token whose best key is the corner c obeys z' = c − z from then on: its distance falls as e^{−t}. With
    V = diag(1, −½) only the first coordinate decides, it ends in at most three values, and a token not at 0 ends at the largest
    or the least: two.

    **Numbers** ‖z‖²/max_j ⟨z, z_j⟩ averaged over tokens, 1; the rate of the median distance, 1; how many values the first
    coordinate has in the second case, 2.

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
        Comparison("rate of the distance to the corner, V = I", decay_rate, 1.0, "z' = c − z"),
        Comparison(
            "values of the first coordinate, V = diag(1, −½)",
            float(count_groups(planes[-1, :, 0])),
            2.0,
            "largest and least",
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
    """1 where a token is its own best key."""
    return z.square().sum(-1) / (z @ z.mT).amax(-1)


def best_keys(z: Particles) -> Particles:
    """Where each token goes: its best key among all."""
    return z[(z @ z.mT).argmax(-1)]


def count_groups(values: Float[Tensor, " n"], min_gap: float = 0.05) -> int:
    """Groups of numbers with gaps larger than a share of their range between them."""
    sorted_values = values.sort().values
    return 1 + int((sorted_values.diff() > min_gap * (sorted_values[-1] - sorted_values[0])).sum())
