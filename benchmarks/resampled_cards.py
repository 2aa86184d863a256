"""The card of the default model with other null draws: the answers of other seeds, and the coverage of its intervals."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from checkpointed_jobs import Checkpoint, Result
from tiny_cards import Measurements, Size, chosen_claims, random_texts

import rheoscope as rs
from rheoscope.catalogue import all_claims
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer
from rheoscope.report.card import answer_claims, interval_name, trace_batches
from rheoscope.report.card_cache import cache_folder, cached_measurement
from rheoscope.report.card_texts import passages
from rheoscope.space.claim import Claim, ClaimSample, Measured
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

# Parts c and d: the default model


def card_of_seed(seed: int, size: Size, folder: str | None) -> Result:
    """The card of the default model with other null draws. Its measurements are stored."""
    if folder is not None:
        os.environ["XDG_CACHE_HOME"] = folder
    untrained = max(size.untrained, MIN_DRAWS)
    card = rs.card(*SUBJECTS[size.subject](), size.draws, untrained, seed, cache=folder is not None)
    names = ("estimate", "low", "high", "smallest_effect", "random_mean", "threshold")
    numbers = {
        str(name): {field: float(card[f"part_{field}"].sel(interval=name)) for field in names}
        for name in card.interval.values
    }
    answers = zip(card.claim.values.tolist(), card.answer.values.tolist(), strict=True)
    return {"answers": dict(answers), "numbers": numbers}


@cache
def default_subject() -> tuple[Any, Sequence[Any]]:
    return rs.load(dtype="float32"), passages()


@cache
def tiny_subject() -> tuple[Any, Sequence[Any]]:
    """Without a tokenizer, so that claims about words are refused."""
    network = Transformer(Config(vocabulary=64, width=8, depth=1, heads=2))
    return rs.load(network, untrained=True, seed=10_000), random_texts(4, 12, seed=0, ids=(0, 64))


SUBJECTS = {"default model": default_subject, "tiny model": tiny_subject}


def finish_cards(size: Size, checkpoint: Checkpoint, out: Path | None) -> dict[int, Result]:
    """The cards of all seeds. Seed 0 is the card to compare with."""
    folder = None if out is None else str(out / "calibration_cache")
    jobs = {f"d, seed {seed}, {size.draws} draws": (seed, size, folder) for seed in range(size.seeds + 1)}
    return dict(enumerate(checkpoint.finish(card_of_seed, jobs).values()))


def other_seeds(size: Size, checkpoint: Checkpoint, out: Path | None) -> Result:
    """Part d: the answers that other null draws change."""
    return compare_seeds(finish_cards(size, checkpoint, out))


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
            n_covered[interval_name(row)] += single.low <= truth <= single.high
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
    """The measurements of the default model under the null draws of all seeds, from the cache of part d."""
    folder = None
    if out is not None:
        finish_cards(size, checkpoint, out)
        os.environ["XDG_CACHE_HOME"] = str(out / "calibration_cache")
        folder = cache_folder()
    model, texts = SUBJECTS[size.subject]()
    batches = trace_batches(model, texts)

    def measure(claim: Claim, seed: int) -> Mapping[str, Measured]:
        parts = cached_measurement(claim, ClaimSample(model, batches, size.draws, seed), folder, rs.__version__)
        return {part: values.cpu() for part, values in parts.items()}

    populations: Populations = {}
    for claim in chosen_claims(size.claims):
        measured = [measure(claim, seed) for seed in range(size.seeds + 1)]
        populations[claim.name] = {
            part.name: Population.of_seeds([values[part.name] for values in measured]) for part in claim.parts
        }
    return populations


def resampled_coverage(size: Size, checkpoint: Checkpoint, out: Path | None) -> Result:
    """Part c: coverage over samples of the passages and of the null draws of all seeds."""
    return coverage(default_populations(size, checkpoint, out), size.draws, size.samples)
