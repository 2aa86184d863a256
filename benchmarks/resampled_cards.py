"""The card of the default model with other null draws: the answers of other seeds, and the coverage of its intervals."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch
from checkpointed_jobs import Checkpoint, Result
from tiny_cards import (
    Measurements,
    Size,
    chosen_claims,
    control_means,
    mean_effects,
    printed_answers,
    random_texts,
    row_numbers,
)

import rheoscope as rs
from rheoscope.catalogue import all_claims
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer
from rheoscope.report.card import answer_claims
from rheoscope.report.card_cache import cached_measurement
from rheoscope.report.card_clouds import trace_batches
from rheoscope.report.card_texts import passages
from rheoscope.shapes import RheoscopeError
from rheoscope.space.claim import Claim, ClaimSample, Measured
from rheoscope.space.traces import Traces
from rheoscope.statistics.claim_answers import (
    CARD_LEVEL,
    MIN_DRAWS,
    Criterion,
    EffectInterval,
    claim_answer,
    effect_interval,
    joint_answer,
)

COVERAGE_LIMITS, MIN_JOINT_COVERAGE = (0.93, 0.97), 0.93
NEAR_THRESHOLD = 0.25
"""An answer is near its threshold if a change of this size gives another: see `margin`."""

# The default model


@cache
def default_subject() -> tuple[Any, Sequence[Any]]:
    return rs.load(dtype="float32"), passages()


@cache
def tiny_subject() -> tuple[Any, Sequence[Any]]:
    """Without a tokenizer, so that claims about words are refused."""
    network = Transformer(Config(vocabulary=64, width=8, depth=1, heads=2))
    return rs.load(network, untrained=True, seed=10_000), random_texts(4, 12, seed=0, ids=(0, 64))


SUBJECTS = {"default model": default_subject, "tiny model": tiny_subject}


@cache
def subject_batches(name: str) -> tuple[Any, tuple[Traces, ...]]:
    """The model and its texts, traced once per process."""
    model, texts = SUBJECTS[name]()
    with torch.no_grad():
        return model, trace_batches(model, texts)


@lru_cache(maxsize=1)
def control_batches(name: str, number: int) -> tuple[Any, tuple[Traces, ...]]:
    """An untrained model of the same architecture, and its traces of the same texts."""
    model, texts = SUBJECTS[name]()
    control = rs.load(model.network, tokenizer=model.tokenizer, untrained=True, seed=number)
    with torch.no_grad():
        return control, trace_batches(control, texts)


def measurements_folder(out: Path | None) -> Path | None:
    """Where the measurements of the default model are stored."""
    return None if out is None else out / "calibration_cache"


@torch.no_grad()
def measured_claim(name: str, seed: int, size: Size, folder: Path | None) -> Mapping[str, Measured] | None:
    """A claim under the null draws of one seed, from disk if it was measured before. None if the model refuses the claim."""
    (claim,) = chosen_claims([name])
    sample = ClaimSample(*subject_batches(size.subject), size.draws, seed)
    try:
        parts = cached_measurement(claim, sample, folder, rs.__version__)
    except RheoscopeError:
        return None
    return {part: values.cpu() for part, values in parts.items()}


def measurement_job(name: str, seed: int, size: Size, folder: Path | None) -> Result:
    """Measure a claim and store it. The result only says how long it took."""
    start = time.perf_counter()
    is_refused = measured_claim(name, seed, size, folder) is None
    return {"refused": is_refused, "seconds": round(time.perf_counter() - start, 1)}


@torch.no_grad()
def control_job(name: str, number: int, seed: int, size: Size) -> Result:
    """The mean effects of an untrained model, whose own null draws have this seed."""
    (claim,) = chosen_claims([name])
    return {
        "means": mean_effects(
            {name: claim.measure(ClaimSample(*control_batches(size.subject, number), draws=0, seed=seed))}
        )
    }


Key = tuple[str, int]
"""A claim and a seed."""


def measure_seeds(size: Size, checkpoint: Checkpoint, out: Path | None) -> dict[Key, bool]:
    """Measure all claims with seed 0, the card to compare with, and the chosen ones with the others. Whether each is refused."""
    folder, label = measurements_folder(out), f"{size.draws} draws"
    jobs = {
        f"d, {name}, seed {seed}, {label}": (name, seed, size, folder)
        for seed in range(size.seeds + 1)
        for name in (claim.name for claim in chosen_claims(None if seed == 0 else size.claims))
    }
    results = checkpoint.finish(measurement_job, jobs)
    return {(name, seed): results[job]["refused"] for job, (name, seed, _, _) in jobs.items()}


def untrained_means(keys: Sequence[Key], size: Size, checkpoint: Checkpoint) -> dict[Key, list[dict[str, float]]]:
    """The mean effects of every untrained model, for the claims that untrained models decide."""
    decided = [(name, seed) for name, seed in keys if chosen_claims([name])[0].random_models == "untrained"]
    n_models = max(size.untrained, MIN_DRAWS)
    jobs = {
        f"d, untrained {name} {number}, seed {seed}": (name, number, seed, size)
        for number in range(n_models)
        for name, seed in decided
    }
    results = checkpoint.finish(control_job, jobs)
    return {
        (name, seed): [results[f"d, untrained {name} {number}, seed {seed}"]["means"] for number in range(n_models)]
        for name, seed in decided
    }


def finish_cards(size: Size, checkpoint: Checkpoint, out: Path | None) -> dict[int, Result]:
    """The cards of all seeds. A claim that was not measured with a seed has the measurement of seed 0 there."""
    is_refused, folder = measure_seeds(size, checkpoint, out), measurements_folder(out)
    keys = [key for key, refused in is_refused.items() if not refused]
    means = untrained_means(keys, size, checkpoint)
    cards = {}
    for seed in range(size.seeds + 1):
        seeds = {name: seed if (name, seed) in keys else 0 for name, first_seed in keys if first_seed == 0}
        measured = {name: measured_claim(name, own_seed, size, folder) for name, own_seed in seeds.items()}
        controls = {
            key: values
            for name, own_seed in seeds.items()
            if (name, own_seed) in means
            for key, values in control_means(means[name, own_seed]).items()
        }
        rows = answer_claims({name: parts for name, parts in measured.items() if parts is not None}, controls)
        cards[seed] = {"answers": printed_answers(rows), "numbers": row_numbers(rows)}
    return cards


def other_seeds(size: Size, checkpoint: Checkpoint, out: Path | None) -> Result:
    """Part d: the answers that other null draws change."""
    compared = [claim.name for claim in chosen_claims(size.claims)]
    return compare_seeds(finish_cards(size, checkpoint, out)) | {"compared": compared}


def compare_seeds(cards: Mapping[int, Result]) -> Result:
    """The answers that differ from those of seed 0, and the claims that are near their threshold with any seed."""
    expected = cards[0]["answers"]
    margins = {claim: min(margin(card, claim) for card in cards.values()) for claim in expected}
    changes = {
        f"{claim}, seed {seed}": {"answer": answer, "expected": expected[claim], "margin": margin(card, claim)}
        for seed, card in cards.items()
        for claim, answer in card["answers"].items()
        if answer != expected[claim]
    }
    return {
        "seeds": len(cards) - 1,
        "answers": expected,
        "changes": changes,
        "near_threshold": {claim: value for claim, value in margins.items() if value <= NEAR_THRESHOLD},
        "is_allowed": all(change["margin"] <= NEAR_THRESHOLD for change in changes.values()),
    }


Row = tuple[EffectInterval, Criterion]


def card_rows(card: Result, claim: Claim) -> list[Row]:
    """The interval and the criterion of every part of a claim."""
    names = {part: claim.name if part.name == claim.name else f"{claim.name}.{part.name}" for part in claim.parts}
    return [
        (
            EffectInterval(row["estimate"], row["low"], row["high"], 0, 0.0, 0.0, 0, CARD_LEVEL),
            Criterion(part.smallest_effect, row["random_mean"], row["threshold"], part.allows_loss),
        )
        for part, name in names.items()
        for row in [card["numbers"][name]]
    ]


def margin(card: Result, name: str) -> float:
    """The smallest change of one part that gives another answer, at most 2.

    The change is a shift by this share of the interval's half-width, or a larger or smaller limit of random models.
    """
    (claim,) = chosen_claims([name])
    rows = card_rows(card, claim)
    answer = joint_answer([claim_answer(*row) for row in rows])
    for step in range(1, 41):
        for index, row in enumerate(rows):
            for changed in changed_rows(*row, step / 20):
                others = [*rows[:index], changed, *rows[index + 1 :]]
                if joint_answer([claim_answer(*other) for other in others]) != answer:
                    return step / 20
    return 2.0


def changed_rows(interval: EffectInterval, criterion: Criterion, share: float) -> list[Row]:
    """The interval shifted up and down, and the limit raised and lowered."""
    shift = share * (interval.high - interval.low) / 2
    limits = (criterion.random_limit * (1 + share), criterion.random_limit * max(1 - share, 0))
    return [
        *((shifted(interval, step), criterion) for step in (shift, -shift)),
        *((interval, replace(criterion, random_limit=limit)) for limit in limits),
    ]


def shifted(interval: EffectInterval, shift: float) -> EffectInterval:
    ends = (interval.estimate + shift, interval.low + shift, interval.high + shift)
    return replace(interval, estimate=ends[0], low=ends[1], high=ends[2])


@dataclass(frozen=True, eq=False)
class Population:
    """Texts and null draws of one interval, of which samples are taken. `reference` has one row per seed."""

    observed: torch.Tensor
    reference: torch.Tensor | None
    draws: torch.Tensor | None

    @staticmethod
    def of_seeds(measured: Sequence[Measured]) -> "Population":
        """The same texts under the null draws of all seeds."""
        first = measured[0]
        references = [x.reference for x in measured if x.reference is not None]
        draws = [x.draws for x in measured if x.draws is not None]
        return Population(
            first.observed.double(),
            torch.stack(references).double() if references else None,
            torch.cat(draws).double() if draws else None,
        )

    @property
    def true_effect(self) -> float:
        """The mean effect over all texts and all null draws."""
        nulls = self.draws if self.draws is not None else self.reference
        effects = self.observed if nulls is None else self.observed - nulls.mean(0)
        return float(effects.nanmean())

    def sample(self, texts: torch.Tensor, n_draws: int, generator: torch.Generator) -> Measured:
        """These texts with new null draws, both with replacement."""
        observed = self.observed[texts]
        if self.draws is not None:
            rows = torch.randint(len(self.draws), (n_draws,), generator=generator)
            return Measured(observed, draws=self.draws[rows][:, texts])
        if self.reference is None:
            return Measured(observed)
        rows = torch.randint(len(self.reference), texts.shape, generator=generator)
        return Measured(observed, self.reference[rows, texts])


Populations = dict[str, dict[str, Population]]


def coverage(populations: Populations, n_draws: int, samples: int) -> Result:
    """The share of samples in which each 95 % interval covers, and in which all simultaneous ones do."""
    generator = torch.Generator().manual_seed(0)
    n_covered, n_all = Counter[str](), 0
    units = {claim.name: claim.unit for claim in all_claims()}
    truths = {(claim, part): item.true_effect for claim, parts in populations.items() for part, item in parts.items()}
    for _ in range(samples):
        measured: Measurements = {}
        texts: dict[tuple[str, int], torch.Tensor] = {}  # claims over the same units share their sample
        for claim, parts in populations.items():
            n = len(next(iter(parts.values())).observed)
            rows = texts.setdefault((units[claim], n), torch.randint(n, (n,), generator=generator))
            measured[claim] = {part: item.sample(rows, n_draws, generator) for part, item in parts.items()}
        covers_all = True
        for row in answer_claims(measured, {}):
            truth = truths[row.claim.name, row.part.name]
            single = effect_interval(row.evidence, CARD_LEVEL)
            n_covered[row.name] += single.low <= truth <= single.high
            covers_all &= row.interval.low <= truth <= row.interval.high
        n_all += covers_all
    single_shares = {name: count / samples for name, count in n_covered.items()}
    low, high = COVERAGE_LIMITS
    return {
        "samples": samples,
        "coverage": single_shares,
        "joint_coverage": n_all / samples,
        "outside": [name for name, share in single_shares.items() if not low <= share <= high],
        "is_allowed": n_all >= MIN_JOINT_COVERAGE * samples
        and all(low <= share <= high for share in single_shares.values()),
    }


def default_populations(size: Size, checkpoint: Checkpoint, out: Path | None) -> Populations:
    """The measurements of the default model under the null draws of all its seeds, as part d stores them."""
    seeds: dict[str, list[int]] = {}
    for (name, seed), is_refused in measure_seeds(size, checkpoint, out).items():
        if not is_refused:
            seeds.setdefault(name, []).append(seed)
    populations: Populations = {}
    for name, own_seeds in seeds.items():
        measurements = [measured_claim(name, seed, size, measurements_folder(out)) for seed in own_seeds]
        measured = [parts for parts in measurements if parts is not None]
        populations[name] = {part: Population.of_seeds([parts[part] for parts in measured]) for part in measured[0]}
    return populations


def resampled_coverage(size: Size, checkpoint: Checkpoint, out: Path | None) -> Result:
    """Part c: coverage over samples of the passages and of the null draws of all seeds."""
    return coverage(default_populations(size, checkpoint, out), size.draws, size.samples)
