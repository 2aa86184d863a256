"""What a race found as a labelled Dataset: every number of the table, every curve, what was chosen; and how long it took, apart."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rheoscope.learn.curves import Comparison, EntrantComparison, compare_entrants, median_and_interval, read_curves
from rheoscope.learn.entrants import BASELINE
from rheoscope.learn.race_files import list_packs, read_observations, read_race_settings, read_speeds

if TYPE_CHECKING:
    import xarray

ENTRANT_DIMS = ("entrant",)
CURVE_DIMS = ("entrant", "seed", "step")

FIELDS: dict[str, tuple[tuple[str, ...], str]] = {
    "loss": (CURVE_DIMS, "held-out loss, nats a token, at the entrant's best rate; nothing once a seed has diverged"),
    "train_loss": (CURVE_DIMS, "loss on the batches since the mark before, nats a token"),
    "tokens": (("step",), "tokens that one seed has read"),
    "loss_by_rate": (
        ("entrant", "rate"),
        "held-out loss at the last mark, mean over seeds; nothing where a seed diverged",
    ),
    "best_rate": (ENTRANT_DIMS, "the rate of the grid at which the mean held-out loss is least"),
    "final_loss": (ENTRANT_DIMS, "held-out loss at the last mark, mean over the seeds that are judged"),
    "final_sd": (ENTRANT_DIMS, "its standard deviation over seeds"),
    "difference": (ENTRANT_DIMS, "held-out loss less the baseline's, mean over pairs of the same seed"),
    "difference_low": (ENTRANT_DIMS, "lower end of its 95 % interval, by Student's law"),
    "difference_high": (ENTRANT_DIMS, "upper end of its 95 % interval, by Student's law"),
    "bootstrap_low": (ENTRANT_DIMS, "lower end of its 95 % interval, seeds drawn anew"),
    "bootstrap_high": (ENTRANT_DIMS, "upper end of its 95 % interval, seeds drawn anew"),
    "p_value": (ENTRANT_DIMS, "how often chance goes as far: paired t, or a sign test where a seed diverged"),
    "p_holm": (ENTRANT_DIMS, "the same after Holm's correction over entrants"),
    "verdict": (ENTRANT_DIMS, "ahead or behind where p_holm is at most 5 %, else cannot tell"),
    "reached": (ENTRANT_DIMS, "seeds that reached the target loss"),
    "tokens_to_target": (
        ("entrant", "judged"),
        "tokens after which a seed is at the target loss; nothing where it never was",
    ),
    "tokens_ratio": (
        ENTRANT_DIMS,
        "tokens to the target over the baseline's, median over seeds; never counts as infinitely many",
    ),
    "tokens_ratio_low": (ENTRANT_DIMS, "lower end of its interval, by order statistics"),
    "tokens_ratio_high": (ENTRANT_DIMS, "upper end of its interval, by order statistics"),
    "flops_ratio": (ENTRANT_DIMS, "FLOPs to the target over the baseline's, median over seeds"),
    "flops_per_token": (ENTRANT_DIMS, "FLOPs of one token in training, by counting matrix products"),
    "diverged": (ENTRANT_DIMS, "seeds whose loss was no number at some step, at the best rate"),
}
"""Dimensions and definition of every field."""


def race_result(race_path: Path, target: float | None = None, halves: bool = False) -> "xarray.Dataset":
    """What the race in a folder shows, as far as it is: dimensions entrant, seed, step, rate.

    **Laws** a function of the logs alone: a race that was killed and went on gives the same, byte for byte.

    **Siblings** `curves.compare` has the statistics; `times` how long it took, which is no part of this.
    """
    comparison = compare_entrants(read_curves(race_path), target, halves)
    return comparison_dataset(comparison, read_race_settings(race_path))


def comparison_dataset(comparison: Comparison, settings: dict[str, Any]) -> "xarray.Dataset":
    """A comparison as labelled arrays."""
    import xarray as xr

    rows, baseline = comparison.rows, comparison.rows[0]
    judged_indices = [baseline.curves.seeds.index(seed) for seed in comparison.judged_seeds]
    row_values = [_entrant_values(row, baseline, judged_indices) for row in rows]
    numbers = {name: np.array([values[name] for values in row_values]) for name in row_values[0]}
    numbers |= {
        "loss": np.stack([row.curves.loss.numpy() for row in rows]),
        "train_loss": np.stack([row.curves.train_loss.numpy() for row in rows]),
        "tokens": np.array(baseline.curves.tokens),
        "tokens_to_target": torch.stack([row.tokens_to_target for row in rows]).masked_fill_(
            torch.stack([row.tokens_to_target for row in rows]).isinf(), torch.nan
        ).numpy(),
        "loss_by_rate": np.array(
            [[comparison.loss_by_rate.get((row.curves.entrant, rate), np.nan) for rate in settings["rates"]] for row in rows]
        ),
    }  # fmt: skip
    coordinates = {
        "entrant": [row.curves.entrant for row in rows],
        "seed": list(baseline.curves.seeds),
        "judged": list(comparison.judged_seeds),
        "step": list(baseline.curves.steps),
        "rate": settings["rates"],
    }
    arrays = {name: (dims, numbers[name], {"definition": definition}) for name, (dims, definition) in FIELDS.items()}
    steps, last_step = settings["recipe"]["steps"], baseline.curves.steps[-1]
    rate_seeds = range(settings["first_seed"]) if settings["chosen"] else comparison.rate_seeds
    attributes = {
        "analysis": "race",
        "baseline": BASELINE,
        "target": comparison.target,
        "steps": last_step,
        "steps_planned": steps,
        "seeds": settings["seeds"],
        "rates_chosen_on": format_seeds(rate_seeds),
        "judged_on": format_seeds(comparison.judged_seeds),
        "recipe": str(settings["recipe"]),
        "data": settings["data"],
    }
    return xr.Dataset(arrays, coordinates, attributes)


def format_seeds(seeds: Sequence[int]) -> str:
    """The numbers of seeds, briefly where they follow each other.

    >>> format_seeds([0, 1, 2, 3]), format_seeds([4, 6])
    ('0 to 3', '4, 6')
    """
    numbers = list(seeds)
    return (
        f"{numbers[0]} to {numbers[-1]}"
        if len(numbers) > 2 and numbers == [*range(numbers[0], numbers[-1] + 1)]
        else ", ".join(map(str, numbers))
    )


def _entrant_values(
    row: EntrantComparison, baseline: EntrantComparison, judged_indices: list[int]
) -> dict[str, float | str | int]:
    """Everything that is one number, or one word, for an entrant."""
    difference, final_losses = row.difference, row.curves.final_loss[judged_indices]
    median_ratio, low, high = median_and_interval(row.tokens_ratio)
    flops_per_token, baseline_flops_per_token = (
        compared.curves.flops[-1] / max(compared.curves.tokens[-1], 1) for compared in (row, baseline)
    )
    difference_values: dict[str, float] = {
        name: torch.nan if row is baseline else float(value)
        for name, value in (
            ("difference", difference.mean),
            ("difference_low", difference.low),
            ("difference_high", difference.high),
            ("bootstrap_low", difference.bootstrap_low),
            ("bootstrap_high", difference.bootstrap_high),
            ("p_value", difference.p),
            ("p_holm", torch.tensor(row.p_holm)),
        )
    }
    return {
        "best_rate": row.curves.rate,
        "final_loss": float(final_losses.nanmean()),
        "final_sd": _standard_deviation(final_losses),
        **difference_values,
        "verdict": row.verdict,
        "reached": int(row.tokens_to_target.isfinite().sum()),
        "tokens_ratio": median_ratio,
        "tokens_ratio_low": low,
        "tokens_ratio_high": high,
        "flops_ratio": median_ratio * flops_per_token / baseline_flops_per_token
        if baseline_flops_per_token
        else torch.nan,
        "flops_per_token": flops_per_token,
        "diverged": row.n_diverged,
    }


def _standard_deviation(x: torch.Tensor) -> float:
    """The standard deviation of what there is; none of fewer than two."""
    valid = x[~x.isnan()]
    return float(valid.std()) if len(valid) > 1 else torch.nan


def median_speeds(race_path: Path) -> dict[str, float]:
    """Tokens a second of every entrant, all its seeds together, median over turns: of this machine and this hour, not of the race."""
    settings = read_race_settings(race_path)
    medians: dict[str, float] = {}
    for entrant in settings["mechanisms"]:
        speeds_by_pack = [read_speeds(race_path, name, rate) for name, rate in list_packs(settings) if name == entrant]
        speeds = [
            speed for pack_speeds in speeds_by_pack for speed in pack_speeds[len(pack_speeds) > 1 :]
        ]  # in the first one things are compiled
        if speeds:
            medians[entrant] = statistics.median(speeds)
    return medians


def best_rate_observations(race_path: Path) -> dict[str, list[dict[str, Any]]]:
    """What was seen of the first seed of every entrant that was looked at, at its best rate."""
    best_rates = {row.curves.entrant: row.curves.rate for row in compare_entrants(read_curves(race_path)).rows}
    observations = {entrant: read_observations(race_path, entrant, rate) for entrant, rate in best_rates.items()}
    return {
        entrant: entrant_observations for entrant, entrant_observations in observations.items() if entrant_observations
    }
