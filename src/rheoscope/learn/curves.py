"""What a race shows: paired differences with their intervals, tokens to a target, and a word for each entrant.

    difference_s = loss of the entrant − loss of the baseline, both of seed s         the same data, order and draws
    verdict      = ahead or behind where p ≤ 5 % after Holm's correction over entrants, else cannot tell

Each entrant stands at the rate of the grid at which its mean loss is least, and so does the baseline.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from rheoscope.learn.entrants import BASELINE
from rheoscope.learn.race_files import Line, logs, packs_of, read_race
from rheoscope.shapes import RheoscopeError
from rheoscope.statistics.nulls import bootstrap, holm, median_ends, sign_p, student, student_ends

LEVEL = 0.05
AHEAD, BEHIND, OPEN = "ahead", "behind", "cannot tell"


@dataclass(frozen=True, eq=False)
class Curves:
    """Held-out and training losses of one entrant at one rate: a row for each seed, a column for each mark; NaN once diverged."""

    entrant: str
    rate: float
    seeds: tuple[int, ...]
    steps: tuple[int, ...]
    tokens: tuple[int, ...]
    flops: tuple[int, ...]
    loss: Float[Tensor, "s t"]
    train: Float[Tensor, "s t"]
    diverged: tuple[int | None, ...]

    @property
    def last(self) -> Float[Tensor, " s"]:
        """The loss at the last mark."""
        return self.loss[:, -1]

    def up_to(self, marks: int) -> "Curves":
        """The first marks alone."""
        return Curves(
            self.entrant, self.rate, self.seeds, self.steps[:marks], self.tokens[:marks], self.flops[:marks],
            self.loss[:, :marks], self.train[:, :marks], self.diverged,
        )  # fmt: skip


def read(out: Path) -> list[Curves]:
    """The curves of a race, each as far as all of them are: a race that goes on is compared at the last mark that all have passed."""
    grouped: dict[tuple[str, float], list[Line]] = {}
    for line in logs(out):
        grouped.setdefault((line["entrant"], line["rate"]), []).append(line)
    missing = [name for name, rate in packs_of(read_race(out)) if (name, rate) not in grouped]
    if missing:
        raise RheoscopeError(f"{out} has nothing of {missing[0]} yet; type the command of the race again to go on")
    made = [_curves(name, rate, lines) for (name, rate), lines in grouped.items()]
    return [one.up_to(min(len(other.steps) for other in made)) for one in made]


def _curves(entrant: str, rate: float, lines: Sequence[Line]) -> Curves:
    seeds, steps = ([*dict.fromkeys(line[key] for line in lines)] for key in ("seed", "step"))
    first = [line for line in lines if line["seed"] == seeds[0]]

    def grid(key: str) -> Tensor:
        found = [torch.nan if line[key] is None else line[key] for line in lines]
        return torch.tensor(found, dtype=torch.float64).view(len(steps), len(seeds)).mT

    return Curves(
        entrant, rate, tuple(seeds), tuple(steps), tuple(line["tokens"] for line in first),
        tuple(line["flops"] for line in first), grid("loss"), grid("train loss"),
        tuple(line["diverged"] for line in lines[-len(seeds) :]),
    )  # fmt: skip


def best(of: Sequence[Curves], seeds: slice = slice(None)) -> Curves:
    """The curves at the rate of the least mean loss over these seeds; one at which a seed diverged only where all have one.

    >>> at = lambda rate, loss: Curves("untied", rate, (0,), (1,), (9,), (9,), torch.tensor([[loss]]), torch.zeros(1, 1), (None,))
    >>> best([at(1e-3, 3.0), at(3e-3, 2.0), at(1e-2, float("nan"))]).rate
    0.003
    """

    def order(one: Curves) -> tuple[int, float]:
        there = one.last[seeds]
        lost = int(there.isnan().sum())
        return lost, float(there.nanmean()) if lost < len(there) else torch.inf

    return min(of, key=order)


# Paired differences


@dataclass(frozen=True, eq=False)
class Difference:
    """Mean over seeds of entrant − baseline, 95 % intervals by Student's law and by bootstrap, and p (two-sided)."""

    mean: Float[Tensor, "*c"]
    low: Float[Tensor, "*c"]
    high: Float[Tensor, "*c"]
    bootstrap_low: Float[Tensor, "*c"]
    bootstrap_high: Float[Tensor, "*c"]
    p: Float[Tensor, "*c"]
    behind: Tensor


def paired(own: Float[Tensor, " s"], other: Float[Tensor, " s"]) -> Difference:
    """Losses of the same seeds compared.

    Where a seed of either has diverged (NaN) the mean and its intervals are of the pairs that are left, and p is that of a sign test
    in which what diverged is behind: a run that is lost has no loss, but it has lost.

    >>> found = paired(torch.tensor([1.0, 1.1, 1.2]), torch.tensor([1.3, 1.5, 1.4]))
    >>> round(float(found.mean), 2), round(float(found.p), 3)
    (-0.3, 0.035)
    """
    d = own - other
    there = d[~d.isnan()]
    low, high = student_ends(there)
    between = bootstrap(there, [1] * len(there), Generator().manual_seed(0))
    worse = (own.isnan() & ~other.isnan()) | (d > 0)
    better = (other.isnan() & ~own.isnan()) | (d < 0)
    p = t_p(d) if len(there) == len(d) else sign_p(worse.sum(), better.sum()).to(d)
    sign = there.mean() if len(there) == len(d) else (worse.sum() - better.sum()).double()
    return Difference(there.mean(), low, high, *between, p, sign > 0)


def t_p(d: Float[Tensor, "*c s"]) -> Float[Tensor, "*c"]:
    """p of a mean that is not 0, by Student's law; NaN where the numbers have no spread, or are fewer than 2.

    >>> round(float(t_p(torch.tensor([1.0, 2.0, 3.0]))), 3)
    0.074
    """
    n = d.shape[-1]
    if n < 2:
        return torch.full_like(d.mean(-1), torch.nan)
    spread = d.std(-1)
    t = d.mean(-1) / torch.where(spread > 1e-12 * d.abs().amax(-1), spread, torch.nan) * n**0.5
    return torch.where(t.isnan(), torch.nan, student(t, n - 1))


def verdicts(p: Float[Tensor, "*c m"], behind: Tensor, level: float = LEVEL) -> list[str]:
    """A word for each entrant, after Holm's correction over all of them.

    >>> verdicts(torch.tensor([0.001, 0.2, float("nan")]), torch.tensor([False, True, True]))
    ['ahead', 'cannot tell', 'cannot tell']
    """
    found = holm(p) <= level  # NaN is not
    return [
        OPEN if not one else BEHIND if worse else AHEAD
        for one, worse in zip(found.tolist(), behind.tolist(), strict=True)
    ]


# Tokens to a target


def tokens_to(target: float, curves: Curves) -> Float[Tensor, " s"]:
    """Tokens after which the held-out loss of each seed is first at the target, between marks by a straight line; ∞ where it never is.

    >>> loss = torch.tensor([[4.0, 3.0, 2.0], [4.0, 3.5, 3.2]])
    >>> told = Curves("untied", 1e-3, (0, 1), (0, 1, 2), (0, 100, 200), (0, 1, 2), loss, loss, (None, None))
    >>> tokens_to(2.5, told).tolist()
    [150.0, inf]
    """
    return first_at(target, torch.tensor(curves.tokens, dtype=torch.float64), curves.loss.double())


def first_at(target: float, tokens: Float[Tensor, " t"], loss: Float[Tensor, "s t"]) -> Float[Tensor, " s"]:
    """The same of losses by themselves."""
    there = loss <= target  # NaN is not
    first = there.double().argmax(-1)
    before = (first - 1).clamp(min=0)
    at, was = (loss.gather(-1, place[:, None]).squeeze(-1) for place in (first, before))
    share = torch.where(first > 0, (was - target) / (was - at), 1.0)
    reached = tokens[before] + share * (tokens[first] - tokens[before])
    return torch.where(there.any(-1), reached, torch.inf)


def usual_target(baseline: Curves, judged: slice) -> float:
    """The loss that every seed of the baseline reaches: that of its worst one at the end."""
    return float(baseline.last[judged].nan_to_num(-torch.inf).max())


# The table


@dataclass(frozen=True, eq=False)
class Row:
    """One entrant beside the baseline, at the best rate of each."""

    curves: Curves
    difference: Difference
    p_holm: float
    verdict: str
    tokens: Float[Tensor, " s"]
    tokens_ratio: Float[Tensor, " s"]

    @property
    def diverged(self) -> int:
        return sum(at is not None for at in self.curves.diverged)


@dataclass(frozen=True, eq=False)
class Found:
    """What a race shows: the baseline first, and what was compared."""

    rows: list[Row]
    target: float
    judged: tuple[int, ...]
    chosen: tuple[int, ...]
    by_rate: dict[tuple[str, float], float]
    facts: dict[str, Any]


def compare(
    curves: Iterable[Curves], target: float | None = None, halves: bool = False, facts: dict[str, Any] | None = None
) -> Found:
    """Every entrant beside the baseline at the best rate of each.

    With `halves` rates are chosen on the first half of the seeds and judged on the others: what was chosen because it was lucky is
    then judged where it was not. Without, both are done on all seeds, which favours nobody, as all choose from the same grid.
    """
    grouped: dict[str, list[Curves]] = {}
    for one in curves:
        grouped.setdefault(one.entrant, []).append(one)
    if BASELINE not in grouped:
        raise RheoscopeError(
            f"a race is compared with {BASELINE!r}, which is not there; type --mechanisms {BASELINE},…"
        )
    seeds = grouped[BASELINE][0].seeds
    half = len(seeds) // 2
    if halves and half < 2:
        raise RheoscopeError(
            f"half of {len(seeds)} seeds judges nothing; type --seeds 4 or more, or leave --halves out"
        )
    choosing, judging = (slice(0, half), slice(half, None)) if halves else (slice(None), slice(None))
    chosen = {name: best(of, choosing) for name, of in grouped.items()}
    base = chosen[BASELINE]
    target = usual_target(base, judging) if target is None else target
    differences = {name: paired(one.last[judging], base.last[judging]) for name, one in chosen.items()}
    others = [name for name in chosen if name != BASELINE]
    p = torch.stack([differences[name].p for name in others]) if others else torch.empty(0)
    words = verdicts(p, torch.tensor([bool(differences[name].behind) for name in others]))
    told = dict(zip(others, zip(holm(p).tolist(), words, strict=True), strict=True)) | {BASELINE: (torch.nan, "")}
    reached = {name: tokens_to(target, one)[judging] for name, one in chosen.items()}
    rows = [
        Row(one, differences[name], *told[name], reached[name], ratio(reached[name], reached[BASELINE]))
        for name, one in sorted(chosen.items(), key=lambda item: item[0] != BASELINE)
    ]
    by_rate = {(name, one.rate): float(one.last.mean()) for name, of in grouped.items() for one in of}
    return Found(rows, target, seeds[judging], seeds[choosing], by_rate, facts or {})


def ratio(own: Float[Tensor, " s"], base: Float[Tensor, " s"]) -> Float[Tensor, " s"]:
    """Tokens of the entrant over those of the baseline, seed by seed; ∞ where it never arrived, NaN where the baseline did not."""
    return torch.where(base.isinf(), torch.nan, own / base)


def median(x: Float[Tensor, " s"]) -> tuple[float, float, float]:
    """The median of what there is, and its interval."""
    there = x[~x.isnan()]
    if not len(there):
        return (torch.nan,) * 3
    middle = there.sort().values[[(len(there) - 1) // 2, len(there) // 2]]
    low, high = median_ends(there)
    return float(middle.mean()), float(low), float(high)
