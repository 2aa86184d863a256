"""The result of a race as a labelled Dataset, and the training speeds, which are kept separate."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rheoscope.learn.comparison import Comparison, EntrantComparison, compare_race
from rheoscope.learn.contrasts import Contrast
from rheoscope.learn.curves import mean_losses, read_curves
from rheoscope.learn.entrants import BASELINE, entrant_config, n_parameters
from rheoscope.learn.race_files import (
    CURVES_FOLDER,
    is_race,
    judged_rates,
    list_packs,
    rate_race,
    read_observations,
    read_race_settings,
    read_speeds,
)
from rheoscope.learn.rate_curves import basin
from rheoscope.models.config import Config
from rheoscope.space.analysis import Field

if TYPE_CHECKING:
    import xarray

ENTRANT_DIMS = ("entrant",)
CURVE_DIMS = ("entrant", "seed", "step")

FIELDS: dict[str, Field] = {
    "loss": Field(CURVE_DIMS, "Held-out loss at the entrant's best rate; NaN after a seed diverged.", "nats"),
    "train_loss": Field(CURVE_DIMS, "Mean training loss since the previous evaluation.", "nats"),
    "tokens": Field(("step",), "Tokens that one seed has read.", "tokens"),
    "loss_by_rate": Field(
        ("entrant", "rate"), "Final held-out loss at each rate, mean over seeds; NaN if a seed diverged.", "nats"
    ),
    "best_rate": Field(ENTRANT_DIMS, "The rate of the grid with the lowest mean held-out loss."),
    "final_loss": Field(ENTRANT_DIMS, "Final held-out loss, mean over the judged seeds.", "nats"),
    "final_sd": Field(ENTRANT_DIMS, "Standard deviation of the final loss over seeds.", "nats"),
    "difference": Field(ENTRANT_DIMS, "Final loss minus the baseline's, mean over pairs with the same seed.", "nats"),
    "difference_low": Field(ENTRANT_DIMS, "Lower end of the 95 % interval of the difference (Student's t).", "nats"),
    "difference_high": Field(ENTRANT_DIMS, "Upper end of the 95 % interval of the difference (Student's t).", "nats"),
    "bootstrap_low": Field(ENTRANT_DIMS, "Lower end of the 95 % interval of the difference (bootstrap-t).", "nats"),
    "bootstrap_high": Field(ENTRANT_DIMS, "Upper end of the 95 % interval of the difference (bootstrap-t).", "nats"),
    "difference_at_baseline_rate": Field(
        ENTRANT_DIMS, "The difference if the entrant runs at the baseline's rate; NaN if it did not run at it.", "nats"
    ),
    "difference_at_baseline_rate_low": Field(
        ENTRANT_DIMS, "Lower end of the 95 % interval of the difference at the baseline's rate (Student's t).", "nats"
    ),
    "difference_at_baseline_rate_high": Field(
        ENTRANT_DIMS, "Upper end of the 95 % interval of the difference at the baseline's rate (Student's t).", "nats"
    ),
    "p_holm_at_baseline_rate": Field(
        ENTRANT_DIMS,
        "The p value of the difference at the baseline's rate, after Holm's correction over all contrasts.",
    ),
    "verdict_at_baseline_rate": Field(
        ENTRANT_DIMS, "ahead, behind or unclear at the baseline's rate; empty if the entrant did not run at it."
    ),
    "basin_low": Field(
        ENTRANT_DIMS,
        "The lowest rate within .02 nats of the entrant's best, interpolated between the rates of the grid.",
    ),
    "basin_high": Field(
        ENTRANT_DIMS,
        "The highest rate within .02 nats of the entrant's best, interpolated between the rates of the grid.",
    ),
    "basin_width": Field(ENTRANT_DIMS, "The highest rate of the basin over its lowest; 1 is a single rate."),
    "p_value": Field(
        ENTRANT_DIMS,
        "Two-sided p value of a paired t test, or of a sign test if a seed diverged. It allows for unlucky choices of rates.",
    ),
    "p_holm": Field(ENTRANT_DIMS, "The p value after Holm's correction over all contrasts with the baseline."),
    "detectable": Field(
        ENTRANT_DIMS,
        "The true difference that a race with this spread and these seeds finds in 90 % of repetitions.",
        "nats",
    ),
    "verdict": Field(
        ENTRANT_DIMS, "ahead or behind if p_holm is at most 5 %, otherwise unclear (which does not mean equal)."
    ),
    "reached": Field(ENTRANT_DIMS, "Number of seeds that reached the target loss."),
    "tokens_to_target": Field(
        ("entrant", "judged"), "Tokens until a seed reaches the target loss; NaN if it never does.", "tokens"
    ),
    "tokens_ratio": Field(
        ENTRANT_DIMS, "Tokens to the target over the baseline's, median over seeds; infinite if half never reach it."
    ),
    "tokens_ratio_low": Field(
        ENTRANT_DIMS,
        "Lower end of the 95 % interval of the token ratio, from 6 seeds on. Runs that never reach the target are censored.",
    ),
    "tokens_ratio_high": Field(
        ENTRANT_DIMS,
        "Upper end of the 95 % interval of the token ratio, from 6 seeds on. Runs that never reach the target are censored.",
    ),
    "flops_ratio": Field(ENTRANT_DIMS, "FLOPs to the target over the baseline's, median over seeds."),
    "flops_per_token": Field(ENTRANT_DIMS, "FLOPs per token in training, counted from matrix products."),
    "parameters": Field(ENTRANT_DIMS, "The number of trainable parameters."),
    "tokens_per_parameter": Field(ENTRANT_DIMS, "Tokens that one seed has read, over its trainable parameters."),
    "diverged": Field(ENTRANT_DIMS, "Number of seeds whose loss became infinite or NaN at the best rate."),
}
"""All fields of the result."""
SAME_RATE_FIELDS = (
    "difference_at_baseline_rate",
    "difference_at_baseline_rate_low",
    "difference_at_baseline_rate_high",
    "p_holm_at_baseline_rate",
)


def race_result(race_path: Path, target: float | None = None, halves: bool = False) -> "xarray.Dataset":
    """The result of a race, up to the last evaluation that all entrants have reached.

    **Returns** A Dataset with the dimensions entrant, seed, step and rate. `FIELDS` defines its fields.

    **Laws** The result is a function of the logs alone. A race that was killed and resumed gives the same bytes.

    **See also** `comparison.compare_entrants` computes the statistics. `median_speeds` returns training speeds.
    """
    return comparison_dataset(compare_race(race_path, target, halves), *_settings_with_curves(race_path))


def _settings_with_curves(race_path: Path) -> tuple[dict[str, Any], dict[tuple[str, float], float] | None]:
    """The settings of a race with all rates of its entrants and, if it has rate curves, the loss at each of their rates."""
    settings, curve_path = read_race_settings(race_path), rate_race(race_path, CURVES_FOLDER)
    if not is_race(curve_path):
        return settings | {"rates": sorted({*settings["rates"], *(rate for _, rate in list_packs(settings))})}, None
    losses = mean_losses(read_curves(curve_path))
    return settings | {"rates": sorted({rate for _, rate in losses})}, losses


def comparison_dataset(
    comparison: Comparison, settings: dict[str, Any], curve_losses: dict[tuple[str, float], float] | None = None
) -> "xarray.Dataset":
    """A comparison as labelled arrays, with the losses of rate curves if there are any."""
    import xarray as xr

    rows, baseline, loss_by_rate = comparison.rows, comparison.rows[0], curve_losses or comparison.loss_by_rate
    judged_indices = [baseline.curves.seeds.index(seed) for seed in comparison.judged_seeds]
    row_values = [
        {
            **_entrant_values(row, baseline, judged_indices),
            **_basin_values(row.curves.entrant, loss_by_rate),
            **_regime_values(row, settings),
        }
        for row in rows
    ]
    numbers = {name: np.array([values[name] for values in row_values]) for name in row_values[0]}
    numbers |= {
        "loss": np.stack([row.curves.loss.numpy() for row in rows]),
        "train_loss": np.stack([row.curves.train_loss.numpy() for row in rows]),
        "tokens": np.array(baseline.curves.tokens),
        "tokens_to_target": torch.stack([row.tokens_to_target for row in rows]).masked_fill_(
            torch.stack([row.tokens_to_target for row in rows]).isinf(), torch.nan
        ).numpy(),
        "loss_by_rate": np.array(
            [[loss_by_rate.get((row.curves.entrant, rate), np.nan) for rate in settings["rates"]] for row in rows]
        ),
    }  # fmt: skip
    coordinates = {
        "entrant": [row.curves.entrant for row in rows],
        "seed": list(baseline.curves.seeds),
        "judged": list(comparison.judged_seeds),
        "step": list(baseline.curves.steps),
        "rate": settings["rates"],
    }
    arrays = {name: (field.dims, numbers[name], field.attributes()) for name, field in FIELDS.items()}
    steps, last_step = settings["recipe"]["steps"], baseline.curves.steps[-1]
    rate_seeds = range(settings["first_seed"]) if judged_rates(settings) else comparison.rate_seeds
    attributes = {
        "analysis": "race",
        "baseline": BASELINE,
        "target": comparison.target,
        "steps": last_step,
        "steps_planned": steps,
        "contrasts": comparison.n_contrasts,
        "seeds": settings["seeds"],
        "rates_chosen_on": format_seeds(rate_seeds),
        "judged_on": format_seeds(comparison.judged_seeds),
        "recipe": str(settings["recipe"]),
        "data": settings["data"],
    }
    return xr.Dataset(arrays, coordinates, attributes)


def format_seeds(seeds: Sequence[int]) -> str:
    """Seed numbers, as a range if they are consecutive.

    >>> format_seeds([0, 1, 2, 3]), format_seeds([4, 6])
    ('0–3', '4, 6')
    """
    numbers = list(seeds)
    return (
        f"{numbers[0]}–{numbers[-1]}"
        if len(numbers) > 2 and numbers == [*range(numbers[0], numbers[-1] + 1)]
        else ", ".join(map(str, numbers))
    )


def _entrant_values(
    row: EntrantComparison, baseline: EntrantComparison, judged_indices: list[int]
) -> dict[str, float | str | int]:
    """All values of an entrant that are a single number or word."""
    difference, final_losses = row.difference, row.curves.final_loss[judged_indices]
    ratio, is_baseline = row.tokens_ratio, row is baseline
    flops_per_token, baseline_flops_per_token = (
        compared.curves.flops[-1] / max(compared.curves.tokens[-1], 1) for compared in (row, baseline)
    )
    difference_values: dict[str, float] = {
        name: torch.nan if is_baseline else float(value)
        for name, value in (
            ("difference", difference.mean),
            ("difference_low", difference.low),
            ("difference_high", difference.high),
            ("bootstrap_low", difference.bootstrap_low),
            ("bootstrap_high", difference.bootstrap_high),
            ("p_value", difference.p),
            ("p_holm", row.p_holm),
            ("detectable", row.detectable),
        )
    }
    return {
        "best_rate": row.curves.rate,
        "final_loss": float(final_losses.nanmean()),
        "final_sd": _standard_deviation(final_losses),
        **difference_values,
        **_same_rate_values(row.at_baseline_rate),
        "verdict": row.verdict,
        "reached": int(row.tokens_to_target.isfinite().sum()),
        "tokens_ratio": ratio.median,
        "tokens_ratio_low": torch.nan if is_baseline else ratio.low,
        "tokens_ratio_high": torch.nan if is_baseline else ratio.high,
        "flops_ratio": ratio.median * flops_per_token / baseline_flops_per_token
        if baseline_flops_per_token
        else torch.nan,
        "flops_per_token": flops_per_token,
        "diverged": row.n_diverged,
    }


def _same_rate_values(contrast: Contrast | None) -> dict[str, float | str]:
    """The contrast at the baseline's rate. The baseline itself has none."""
    if contrast is None:
        return dict.fromkeys(SAME_RATE_FIELDS, torch.nan) | {"verdict_at_baseline_rate": ""}
    difference = contrast.difference
    values = (float(difference.mean), float(difference.low), float(difference.high), contrast.p_holm)
    return dict(zip(SAME_RATE_FIELDS, values, strict=True)) | {"verdict_at_baseline_rate": contrast.verdict}


def _basin_values(entrant: str, loss_by_rate: dict[tuple[str, float], float]) -> dict[str, float]:
    low, high = basin({rate: loss for (name, rate), loss in loss_by_rate.items() if name == entrant})
    return {"basin_low": low, "basin_high": high, "basin_width": high / low}


def _regime_values(row: EntrantComparison, settings: dict[str, Any]) -> dict[str, float]:
    """The size of an entrant, and the tokens that it has read per parameter. Races of earlier versions store no sizes."""
    parameters = settings.get("parameters", {}).get(row.curves.entrant)
    if parameters is None:
        recipe = settings["recipe"]
        config = entrant_config(row.curves.entrant, Config.from_dict(recipe["config"]), recipe["context"])
        parameters = n_parameters(config)
    return {"parameters": parameters, "tokens_per_parameter": row.curves.tokens[-1] / parameters}


def _standard_deviation(x: torch.Tensor) -> float:
    """The standard deviation of the values that are not NaN; NaN for fewer than two."""
    valid = x[~x.isnan()]
    return float(valid.std()) if len(valid) > 1 else torch.nan


def median_speeds(race_path: Path) -> dict[str, float]:
    """Tokens per second of every entrant, all seeds together, median over intervals.

    They describe the machine, not the race.
    """
    settings = read_race_settings(race_path)
    medians: dict[str, float] = {}
    for entrant in settings["mechanisms"]:
        speeds_by_pack = [read_speeds(race_path, name, rate) for name, rate in list_packs(settings) if name == entrant]
        speeds = [
            speed for pack_speeds in speeds_by_pack for speed in pack_speeds[len(pack_speeds) > 1 :]
        ]  # the first interval includes compilation
        if speeds:
            medians[entrant] = statistics.median(speeds)
    return medians


def best_rate_observations(race_path: Path) -> dict[str, list[dict[str, Any]]]:
    """The observations of every observed entrant's first seed, at its best rate."""
    best_rates = {row.curves.entrant: row.curves.rate for row in compare_race(race_path).rows}
    observations = {entrant: read_observations(race_path, entrant, rate) for entrant, rate in best_rates.items()}
    return {
        entrant: entrant_observations for entrant, entrant_observations in observations.items() if entrant_observations
    }
