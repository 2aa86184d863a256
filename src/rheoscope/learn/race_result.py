"""What a race found as a labelled Dataset: every number of the table, every curve, what was chosen; and how long it took, apart."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rheoscope.learn.curves import Found, Row, compare, median, read
from rheoscope.learn.entrants import BASELINE
from rheoscope.learn.race_files import looks_of, packs_of, read_race, speeds_of

if TYPE_CHECKING:
    import xarray

ENTRANT = ("entrant",)
CURVE = ("entrant", "seed", "step")

FIELDS: dict[str, tuple[tuple[str, ...], str]] = {
    "loss": (CURVE, "held-out loss, nats a token, at the entrant's best rate; nothing once a seed has diverged"),
    "train_loss": (CURVE, "loss on the batches since the mark before, nats a token"),
    "tokens": (("step",), "tokens that one seed has read"),
    "loss_by_rate": (
        ("entrant", "rate"),
        "held-out loss at the last mark, mean over seeds; nothing where a seed diverged",
    ),
    "best_rate": (ENTRANT, "the rate of the grid at which the mean held-out loss is least"),
    "final_loss": (ENTRANT, "held-out loss at the last mark, mean over the seeds that are judged"),
    "final_sd": (ENTRANT, "its standard deviation over seeds"),
    "difference": (ENTRANT, "held-out loss less the baseline's, mean over pairs of the same seed"),
    "difference_low": (ENTRANT, "lower end of its 95 % interval, by Student's law"),
    "difference_high": (ENTRANT, "upper end of its 95 % interval, by Student's law"),
    "bootstrap_low": (ENTRANT, "lower end of its 95 % interval, seeds drawn anew"),
    "bootstrap_high": (ENTRANT, "upper end of its 95 % interval, seeds drawn anew"),
    "p_value": (ENTRANT, "how often chance goes as far: paired t, or a sign test where a seed diverged"),
    "p_holm": (ENTRANT, "the same after Holm's correction over entrants"),
    "verdict": (ENTRANT, "ahead or behind where p_holm is at most 5 %, else cannot tell"),
    "reached": (ENTRANT, "seeds that reached the target loss"),
    "tokens_to_target": (
        ("entrant", "judged"),
        "tokens after which a seed is at the target loss; nothing where it never was",
    ),
    "tokens_ratio": (
        ENTRANT,
        "tokens to the target over the baseline's, median over seeds; never counts as infinitely many",
    ),
    "tokens_ratio_low": (ENTRANT, "lower end of its interval, by order statistics"),
    "tokens_ratio_high": (ENTRANT, "upper end of its interval, by order statistics"),
    "flops_ratio": (ENTRANT, "FLOPs to the target over the baseline's, median over seeds"),
    "flops_per_token": (ENTRANT, "FLOPs of one token in training, by counting matrix products"),
    "diverged": (ENTRANT, "seeds whose loss was no number at some step, at the best rate"),
}
"""Dimensions and definition of every field."""


def result(out: Path, target: float | None = None, halves: bool = False) -> "xarray.Dataset":
    """What the race in a folder shows, as far as it is: dimensions entrant, seed, step, rate.

    **Laws** a function of the logs alone: a race that was killed and went on gives the same, byte for byte.

    **Siblings** `curves.compare` has the statistics; `times` how long it took, which is no part of this.
    """
    found = compare(read(out), target, halves)
    return dataset(found, read_race(out))


def dataset(found: Found, told: dict[str, Any]) -> "xarray.Dataset":
    """A comparison as labelled arrays."""
    import xarray as xr

    rows, base = found.rows, found.rows[0]
    judged = [base.curves.seeds.index(seed) for seed in found.judged]
    each = [_numbers(row, base, judged) for row in rows]
    numbers = {name: np.array([one[name] for one in each]) for name in each[0]}
    numbers |= {
        "loss": np.stack([row.curves.loss.numpy() for row in rows]),
        "train_loss": np.stack([row.curves.train.numpy() for row in rows]),
        "tokens": np.array(base.curves.tokens),
        "tokens_to_target": torch.stack([row.tokens for row in rows]).masked_fill_(
            torch.stack([row.tokens for row in rows]).isinf(), torch.nan
        ).numpy(),
        "loss_by_rate": np.array(
            [[found.by_rate.get((row.curves.entrant, rate), np.nan) for rate in told["rates"]] for row in rows]
        ),
    }  # fmt: skip
    places = {
        "entrant": [row.curves.entrant for row in rows],
        "seed": list(base.curves.seeds),
        "judged": list(found.judged),
        "step": list(base.curves.steps),
        "rate": told["rates"],
    }
    arrays = {name: (dims, numbers[name], {"definition": said}) for name, (dims, said) in FIELDS.items()}
    steps, last = told["recipe"]["steps"], base.curves.steps[-1]
    before = range(told["first_seed"]) if told["chosen"] else found.chosen
    facts = {
        "analysis": "race", "baseline": BASELINE, "target": found.target, "steps": last, "steps_planned": steps, "seeds": told["seeds"],
        "rates_chosen_on": in_words(before), "judged_on": in_words(found.judged),
        "recipe": str(told["recipe"]), "data": told["data"],
    }  # fmt: skip
    return xr.Dataset(arrays, places, facts)


def in_words(seeds: Sequence[int]) -> str:
    """The numbers of seeds, briefly where they follow each other.

    >>> in_words([0, 1, 2, 3]), in_words([4, 6])
    ('0 to 3', '4, 6')
    """
    row = list(seeds)
    return (
        f"{row[0]} to {row[-1]}" if len(row) > 2 and row == [*range(row[0], row[-1] + 1)] else ", ".join(map(str, row))
    )


def _numbers(row: Row, base: Row, judged: list[int]) -> dict[str, float | str | int]:
    """Everything that is one number, or one word, for an entrant."""
    d, last = row.difference, row.curves.last[judged]
    middle, low, high = median(row.tokens_ratio)
    cost, of_base = (one.curves.flops[-1] / max(one.curves.tokens[-1], 1) for one in (row, base))
    apart: dict[str, float] = {
        name: torch.nan if row is base else float(value)
        for name, value in (
            ("difference", d.mean), ("difference_low", d.low), ("difference_high", d.high), ("bootstrap_low", d.bootstrap_low),
            ("bootstrap_high", d.bootstrap_high), ("p_value", d.p), ("p_holm", torch.tensor(row.p_holm)),
        )
    }  # fmt: skip
    return {
        "best_rate": row.curves.rate, "final_loss": float(last.nanmean()), "final_sd": _spread(last),
        **apart,
        "verdict": row.verdict, "reached": int(row.tokens.isfinite().sum()), "tokens_ratio": middle, "tokens_ratio_low": low,
        "tokens_ratio_high": high, "flops_ratio": middle * cost / of_base if of_base else torch.nan, "flops_per_token": cost,
        "diverged": row.diverged,
    }  # fmt: skip


def _spread(x: torch.Tensor) -> float:
    """The standard deviation of what there is; none of fewer than two."""
    there = x[~x.isnan()]
    return float(there.std()) if len(there) > 1 else torch.nan


def times(out: Path) -> dict[str, float]:
    """Tokens a second of every entrant, all its seeds together, median over turns: of this machine and this hour, not of the race."""
    told = read_race(out)
    found: dict[str, float] = {}
    for entrant in told["mechanisms"]:
        turns = [speeds_of(out, name, rate) for name, rate in packs_of(told) if name == entrant]
        speeds = [speed for of in turns for speed in of[len(of) > 1 :]]  # in the first one things are compiled
        if speeds:
            found[entrant] = statistics.median(speeds)
    return found


def looks(out: Path) -> dict[str, list[dict[str, Any]]]:
    """What was seen of the first seed of every entrant that was looked at, at its best rate."""
    chosen = {row.curves.entrant: row.curves.rate for row in compare(read(out)).rows}
    found = {entrant: looks_of(out, entrant, rate) for entrant, rate in chosen.items()}
    return {entrant: seen for entrant, seen in found.items() if seen}
