"""Cards of planted models: the strength that gives an effect of a chosen size, and the answers to that effect."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import planted_points
import planted_weights
import torch
from checkpointed_jobs import Checkpoint, Result
from scipy.optimize import brentq
from timing import RESULTS
from tiny_cards import (
    SHAPES,
    Measurements,
    Size,
    chosen_claims,
    control_means,
    mean_effects,
    printed_answers,
    random_model,
    random_texts,
    row_numbers,
    text_ids,
)
from torch import Tensor

from rheoscope import __version__
from rheoscope.report.card import answer_claims
from rheoscope.report.card_cache import cached_measurement
from rheoscope.report.card_controls import untrained_model
from rheoscope.space.claim import Claim, ClaimSample, Measured
from rheoscope.space.traces import Traces
from rheoscope.statistics.claim_answers import NO, YES

PLANTS = planted_points.PLANTS | planted_weights.PLANTS
STRENGTH_RANGES = planted_points.STRENGTH_RANGES | planted_weights.STRENGTH_RANGES
FIRST_SEED, FIRST_STRENGTH_SEED = 10_000, 20_000
"""Seeds of the planted models, and of those that choose a strength. Those of untrained models are below."""
STRENGTH_SEEDS = 6
"""Models over which the mean effect of a strength is measured."""
STRENGTH_DRAWS = 10
"""Null draws behind a mean effect while a strength is searched. Their mean differs little between models."""
TOLERANCE, LOWEST_TOLERANCE = 0.04, 0.2
"""The deviation from an effect, in smallest effects of interest, at which a strength is exact enough, and the lowest strength."""
NAME_OF_TEXTS = "texts"
"""The unit of claims whose untrained models are measured on the texts of the planted model."""


@dataclass(frozen=True)
class Case:
    """A planted effect, in smallest effects of interest, and the share of draws in which a card must give an answer."""

    plant: str
    part: str
    effect: float
    answer: str
    min_share: float

    @property
    def claim(self) -> Claim:
        (claim,) = chosen_claims([self.plant.split(".")[0]])
        return claim

    @property
    def smallest_effect(self) -> float:
        return next(part.smallest_effect for part in self.claim.parts if part.name == self.part)

    @property
    def target(self) -> float:
        return self.effect * self.smallest_effect

    @property
    def name(self) -> str:
        return f"{self.plant}, {self.effect:g} smallest effects"

    def strength_name(self, size: Size) -> str:
        return f"b, strength of {self.name}, {min(STRENGTH_SEEDS, size.repeats)} models"


def cases(claims: Sequence[str] | None) -> list[Case]:
    """Twice the smallest effect and no effect for every claim, and a loss where a claim allows for none."""
    result = []
    for claim in chosen_claims(claims):
        if claim.name in PLANTS:
            part = claim.parts[0].name
            result += [Case(claim.name, part, 2.0, YES, 0.9), Case(claim.name, part, 0.0, NO, 0.8)]
        losses = [part.name for part in claim.parts if part.allows_loss and f"{claim.name}.{part.name}" in PLANTS]
        result += [Case(f"{claim.name}.{part}", part, -2.0, NO, 0.9) for part in losses]
    return result


# The strength of an effect


@torch.no_grad()
def strength_job(case: Case, size: Size) -> Result:
    """The strength whose mean effect is that of the case."""
    seeds = range(FIRST_STRENGTH_SEED, FIRST_STRENGTH_SEED + min(STRENGTH_SEEDS, size.repeats))

    def effect(strength: float) -> float:
        samples = [(PLANTS[case.plant](strength, seed), seed) for seed in seeds]
        measured = [
            case.claim.measure(ClaimSample(model, batches, min(STRENGTH_DRAWS, size.draws), seed))
            for (model, batches), seed in samples
        ]
        return fmean(float(values[case.part].effects.double().nanmean()) for values in measured)

    return {"strength": find_strength(effect, STRENGTH_RANGES[case.plant], case, size.steps)}


def find_strength(effect: Callable[[float], float], strengths: tuple[float, float], case: Case, steps: int) -> float:
    """The strength at which a growing effect is that of the case, by Brent's method. The lowest if it is exact enough.

    If even the highest strength has less effect, it is returned.
    """

    @cache
    def excess(strength: float) -> float:
        value = (effect(strength) - case.target) / case.smallest_effect
        return 0.0 if abs(value) <= TOLERANCE else value

    low, high = strengths
    if excess(low) >= -LOWEST_TOLERANCE:
        return low
    if excess(high) <= 0:
        return high
    strength, _ = brentq(excess, low, high, maxiter=steps, full_output=True, disp=False)
    return float(strength)


def stored_strengths() -> dict[str, float]:
    """The strengths of an earlier run, by case."""
    file = RESULTS / "calibration.json"
    part = json.loads(file.read_text()).get("b", {}) if file.is_file() else {}
    return {name: row["strength"] for name, row in part.get("cases", {}).items()}


def find_strengths(chosen: Sequence[Case], size: Size, checkpoint: Checkpoint) -> dict[str, float]:
    """The strength of every case, of an earlier run if there is one."""
    stored = {} if size.search else stored_strengths()
    jobs = {case.strength_name(size): (case, size) for case in chosen if case.name not in stored}
    results = checkpoint.finish(strength_job, jobs)
    return stored | {job[0].name: results[name]["strength"] for name, job in jobs.items()}


# The answers


@cache
def background(folder: str | None, size: Size) -> Measurements:
    """All claims of one random model, so that a planted claim is answered with the levels of a complete card."""
    model = random_model(SHAPES[0], FIRST_SEED)
    with torch.no_grad():
        sample = ClaimSample(
            model, (model.trace(random_texts(size.n_texts, size.n_tokens, FIRST_SEED)),), size.draws, FIRST_SEED
        )
        return {
            claim.name: cached_measurement(claim, sample, None if folder is None else Path(folder), __version__)
            for claim in chosen_claims(size.background)
        }


@torch.no_grad()
def control_measurements(claim: Claim, model: Any, batches: Sequence[Traces], size: Size, seed: int) -> list[Any]:
    """The mean effects of untrained models of the planted architecture on the same texts."""
    texts = text_ids(batches)
    return [
        mean_effects(
            {claim.name: claim.measure(ClaimSample(control, tuple(control.trace(ids) for ids in texts), 0, seed))}
        )
        for control in (untrained_model(model, index) for index in range(size.untrained))
    ]


@torch.no_grad()
def word_control_job(name: str, number: int) -> Result:
    """The mean effects of an untrained model for a claim about words, which needs no texts."""
    (claim,) = chosen_claims([name])
    model = random_model(SHAPES[0], number)
    sample = ClaimSample(model, (model.trace(random_texts(4, 4, 0)),), 0, 0)
    return {"means": mean_effects({name: claim.measure(sample)})}


@torch.no_grad()
def planted_job(
    case: Case, strength: float, seed: int, word_controls: list[dict[str, float]], folder: str | None, size: Size
) -> Result:
    """The answer of a card to one planted model."""
    claim = case.claim
    model, batches = PLANTS[case.plant](strength, seed)
    measured = claim.measure(ClaimSample(model, batches, size.draws, seed))
    controls = word_controls
    if claim.random_models == "untrained" and claim.unit == NAME_OF_TEXTS:
        controls = control_measurements(claim, model, batches, size, seed)
    return planted_answer(claim, measured, background(folder, size), control_means(controls) if controls else {})


def planted_answer(
    claim: Claim,
    measured: Mapping[str, Measured],
    others: Measurements,
    controls: Mapping[tuple[str, str], Tensor],
) -> Result:
    """The answer to one claim on a card whose other claims are those of a random model."""
    rows = answer_claims({**others, claim.name: measured}, controls)
    own_rows = [row for row in rows if row.claim.name == claim.name]
    return {"answer": printed_answers(own_rows)[claim.name], "numbers": row_numbers(own_rows)}


def planted_effects(size: Size, checkpoint: Checkpoint, out: Path | None) -> Result:
    """Part b: how often planted effects have their answers."""
    chosen = cases(size.claims)
    folder = None if out is None else str(out / "calibration_cache")
    background(folder, size)  # stored before the processes start
    strengths = find_strengths(chosen, size, checkpoint)
    word_claims = {
        case.claim.name
        for case in chosen
        if case.claim.unit != NAME_OF_TEXTS and case.claim.random_models == "untrained"
    }
    word_means = checkpoint.finish(
        word_control_job,
        {
            f"b, untrained {name} {number}": (name, number)
            for name in sorted(word_claims)
            for number in range(size.untrained)
        },
    )
    controls = {
        name: [word_means[f"b, untrained {name} {number}"]["means"] for number in range(size.untrained)]
        for name in word_claims
    }
    jobs = {
        f"b, {case.name}, seed {seed}, {size.draws} draws": (
            case,
            strengths[case.name],
            seed,
            controls.get(case.claim.name, []),
            folder,
            size,
        )
        for case in chosen
        for seed in range(FIRST_SEED, FIRST_SEED + size.repeats)
    }
    answers = checkpoint.finish(planted_job, jobs)
    by_case = {case: [answers[name] for name, job in jobs.items() if job[0] == case] for case in chosen}
    rows = {case.name: summarise_case(case, strengths[case.name], results) for case, results in by_case.items()}
    return {"cases": rows, "is_allowed": all(row["is_allowed"] for row in rows.values())}


def summarise_case(case: Case, strength: float, results: Sequence[Result]) -> Result:
    name = case.claim.name if case.part == case.claim.name else f"{case.claim.name}.{case.part}"
    answers = Counter(result["answer"] for result in results)
    numbers = [result["numbers"][name] for result in results]
    return {
        "strength": strength,
        "target": case.target,
        "mean_estimate": fmean(row["estimate"] for row in numbers),
        "mean_half_width": fmean((row["high"] - row["low"]) / 2 for row in numbers),
        "mean_threshold": fmean(row["threshold"] for row in numbers),
        "answers": dict(answers),
        "expected": case.answer,
        "is_allowed": answers[case.answer] >= case.min_share * len(results),
    }
