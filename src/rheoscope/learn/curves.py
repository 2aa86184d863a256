"""Statistics of a race: paired differences with intervals, tokens to a target loss, and a verdict per entrant.

    difference_s = loss of the entrant − loss of the baseline, both with seed s
    verdict      = ahead or behind if p ≤ 5 % after Holm's correction over entrants, otherwise unclear

Runs with the same seed share their data, their order and their initial draws. Every entrant, including the
baseline, is judged at the rate of the grid with the lowest mean loss.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.learn.entrants import BASELINE
from rheoscope.learn.race_files import JsonObject, list_packs, read_all_logs, read_race_settings
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.statistics.intervals import bootstrap_t_interval, median_interval, student_interval
from rheoscope.statistics.nulls import holm_p_values, sign_test_p_values, student_two_sided_p

SIGNIFICANCE_LEVEL = 0.05
AHEAD, BEHIND, UNDECIDED = "ahead", "behind", "unclear"


@dataclass(frozen=True, eq=False)
class Curves:
    """Held-out and training losses of one entrant at one rate.

    One row per seed and one column per evaluation; NaN after divergence.
    """

    entrant: str
    rate: float
    seeds: tuple[int, ...]
    steps: tuple[int, ...]
    tokens: tuple[int, ...]
    flops: tuple[int, ...]
    loss: Float[Tensor, "s t"]
    train_loss: Float[Tensor, "s t"]
    divergence_steps: tuple[int | None, ...]

    @property
    def final_loss(self) -> Float[Tensor, " s"]:
        """The loss at the last evaluation."""
        return self.loss[:, -1]

    def first_evaluations(self, n_evaluations: int) -> "Curves":
        """The curves cut after the first `n_evaluations` evaluations."""
        return Curves(
            self.entrant, self.rate, self.seeds, self.steps[:n_evaluations], self.tokens[:n_evaluations], self.flops[:n_evaluations],
            self.loss[:, :n_evaluations], self.train_loss[:, :n_evaluations], self.divergence_steps,
        )  # fmt: skip


def read_curves(race_path: Path) -> list[Curves]:
    """The curves of a race, up to the last evaluation that every entrant has reached.

    This makes an unfinished race comparable.
    """
    curves = read_started_curves(race_path)
    started = {(curve.entrant, curve.rate) for curve in curves}
    missing = [name for name, rate in list_packs(read_race_settings(race_path)) if (name, rate) not in started]
    if missing:
        raise RheoscopeError(
            Message(
                "{path} has no results for {entrant} yet; run the race again to continue it",
                path=str(race_path),
                entrant=missing[0],
            )
        )
    return [curve.first_evaluations(min(len(shortest.steps) for shortest in curves)) for curve in curves]


def read_started_curves(race_path: Path) -> list[Curves]:
    """The curve of every pack that has been evaluated, each up to its own last evaluation."""
    lines_by_pack: dict[tuple[str, float], list[JsonObject]] = {}
    for line in read_all_logs(race_path):
        lines_by_pack.setdefault((line["entrant"], line["rate"]), []).append(line)
    return [_make_curves(name, rate, lines) for (name, rate), lines in lines_by_pack.items()]


def _make_curves(entrant: str, rate: float, lines: Sequence[JsonObject]) -> Curves:
    seeds, steps = ([*dict.fromkeys(line[key] for line in lines)] for key in ("seed", "step"))
    first_seed_lines = [line for line in lines if line["seed"] == seeds[0]]

    def grid(key: str) -> Tensor:
        values = [torch.nan if line[key] is None else line[key] for line in lines]
        return torch.tensor(values, dtype=torch.float64).view(len(steps), len(seeds)).mT

    return Curves(
        entrant, rate, tuple(seeds), tuple(steps), tuple(line["tokens"] for line in first_seed_lines),
        tuple(line["flops"] for line in first_seed_lines), grid("loss"), grid("train loss"),
        tuple(line["diverged"] for line in lines[-len(seeds) :]),
    )  # fmt: skip


def best_curves(candidates: Sequence[Curves], seeds: slice = slice(None)) -> Curves:
    """The curves at the rate with the lowest mean loss over `seeds`.

    A rate at which a seed diverged is chosen only if a seed diverged at every rate.

    >>> def single(rate, loss):
    ...     return Curves("untied", rate, (0,), (1,), (9,), (9,), torch.tensor([[loss]]), torch.zeros(1, 1), (None,))
    >>> best_curves([single(1e-3, 3.0), single(3e-3, 2.0), single(1e-2, float("nan"))]).rate
    0.003
    """

    def sort_key(curves: Curves) -> tuple[int, float]:
        final_losses = curves.final_loss[seeds]
        n_diverged = int(final_losses.isnan().sum())
        return n_diverged, float(final_losses.nanmean()) if n_diverged < len(final_losses) else torch.inf

    return min(candidates, key=sort_key)


def mean_losses(curves: Iterable[Curves]) -> dict[tuple[str, float], float]:
    """The final loss of every entrant at every rate, mean over seeds; NaN if a seed diverged."""
    return {(curve.entrant, curve.rate): float(curve.final_loss.mean()) for curve in curves}


# Paired differences


@dataclass(frozen=True, eq=False)
class Difference:
    """The mean over seeds of entrant − baseline.

    With 95 % intervals (Student's t and bootstrap-t; NaN for fewer than 4 seeds) and the two-sided p value.
    """

    mean: Float[Tensor, "*c"]
    low: Float[Tensor, "*c"]
    high: Float[Tensor, "*c"]
    bootstrap_low: Float[Tensor, "*c"]
    bootstrap_high: Float[Tensor, "*c"]
    p: Float[Tensor, "*c"]
    is_behind: Tensor


def paired_difference(entrant_losses: Float[Tensor, " s"], baseline_losses: Float[Tensor, " s"]) -> Difference:
    """Compare two entrants seed by seed.

    If a seed of either diverged (NaN), the mean and its intervals use the remaining pairs. The p value then comes
    from a sign test in which a diverged run counts as behind.

    >>> difference = paired_difference(torch.tensor([1.0, 1.1, 1.2]), torch.tensor([1.3, 1.5, 1.4]))
    >>> round(float(difference.mean), 2), round(float(difference.p), 3)
    (-0.3, 0.035)
    """
    d = entrant_losses - baseline_losses
    valid = d[~d.isnan()]
    low, high = student_interval(valid)
    bootstrap_ends = bootstrap_t_interval(valid)
    is_worse = (entrant_losses.isnan() & ~baseline_losses.isnan()) | (d > 0)
    is_better = (baseline_losses.isnan() & ~entrant_losses.isnan()) | (d < 0)
    p = t_test_p_value(d) if len(valid) == len(d) else sign_test_p_values(is_worse.sum(), is_better.sum()).to(d)
    sign = valid.mean() if len(valid) == len(d) else (is_worse.sum() - is_better.sum()).double()
    return Difference(valid.mean(), low, high, *bootstrap_ends, p, sign > 0)


def t_test_p_value(d: Float[Tensor, "*c s"]) -> Float[Tensor, "*c"]:
    """Two-sided p value of Student's t test that the mean is 0. NaN without spread or with fewer than 2 values.

    >>> round(float(t_test_p_value(torch.tensor([1.0, 2.0, 3.0]))), 3)
    0.074
    """
    n = d.shape[-1]
    if n < 2:
        return torch.full_like(d.mean(-1), torch.nan)
    sd = d.std(-1)
    t = d.mean(-1) / torch.where(sd > 1e-12 * d.abs().amax(-1), sd, torch.nan) * n**0.5
    return torch.where(t.isnan(), torch.nan, student_two_sided_p(t, n - 1))


def verdicts(p: Float[Tensor, "*c m"], is_behind: Tensor, level: float = SIGNIFICANCE_LEVEL) -> list[str]:
    """A verdict per entrant, after Holm's correction over all of them.

    "unclear" means that the race does not separate the entrant from the baseline. It does not mean that they are
    equal.

    >>> verdicts(torch.tensor([0.001, 0.2, float("nan")]), torch.tensor([False, True, True]))
    ['ahead', 'unclear', 'unclear']
    """
    is_significant = holm_p_values(p) <= level  # False for NaN
    return [
        UNDECIDED if not significant else BEHIND if is_worse else AHEAD
        for significant, is_worse in zip(is_significant.tolist(), is_behind.tolist(), strict=True)
    ]


# Tokens to a target


def tokens_to_target(target: float, curves: Curves) -> Float[Tensor, " s"]:
    """The number of tokens after which each seed first reaches the target loss; ∞ if it never does.

    Between two evaluations the loss is interpolated linearly.

    >>> loss = torch.tensor([[4.0, 3.0, 2.0], [4.0, 3.5, 3.2]])
    >>> curves = Curves("untied", 1e-3, (0, 1), (0, 1, 2), (0, 100, 200), (0, 1, 2), loss, loss, (None, None))
    >>> tokens_to_target(2.5, curves).tolist()
    [150.0, inf]
    """
    return interpolate_target_tokens(target, torch.tensor(curves.tokens, dtype=torch.float64), curves.loss.double())


def interpolate_target_tokens(
    target: float, tokens: Float[Tensor, " t"], loss: Float[Tensor, "s t"]
) -> Float[Tensor, " s"]:
    """Like `tokens_to_target`, from the losses and token counts alone."""
    is_reached = loss <= target  # False for NaN
    first_index = is_reached.double().argmax(-1)
    previous_index = (first_index - 1).clamp(min=0)
    first_loss, previous_loss = (loss.gather(-1, index[:, None]).squeeze(-1) for index in (first_index, previous_index))
    fraction = torch.where(first_index > 0, (previous_loss - target) / (previous_loss - first_loss), 1.0)
    n_tokens = tokens[previous_index] + fraction * (tokens[first_index] - tokens[previous_index])
    return torch.where(is_reached.any(-1), n_tokens, torch.inf)


def default_target(baseline: Curves, judged_slice: slice) -> float:
    """A loss that every seed of the baseline reaches: the largest final loss over its seeds."""
    return float(baseline.final_loss[judged_slice].nan_to_num(-torch.inf).max())


# The table


@dataclass(frozen=True, eq=False)
class EntrantComparison:
    """One entrant compared with the baseline, each at its best rate."""

    curves: Curves
    difference: Difference
    p_holm: float
    verdict: str
    tokens_to_target: Float[Tensor, " s"]
    tokens_ratio: Float[Tensor, " s"]
    difference_at_baseline_rate: Difference | None = None

    @property
    def n_diverged(self) -> int:
        return sum(step is not None for step in self.curves.divergence_steps)


@dataclass(frozen=True, eq=False)
class Comparison:
    """The result of a race: the rows, the baseline first, and what was compared."""

    rows: list[EntrantComparison]
    target: float
    judged_seeds: tuple[int, ...]
    rate_seeds: tuple[int, ...]
    loss_by_rate: dict[tuple[str, float], float]


def compare_entrants(
    curves: Iterable[Curves],
    target: float | None = None,
    halves: bool = False,
    judged_rates: Mapping[str, float] | None = None,
) -> Comparison:
    """Compare every entrant with the baseline, each at its rate in `judged_rates` or else at its best rate.

    With `halves`, rates are chosen on the first half of the seeds and judged on the second half. This removes the
    bias of choosing a rate that was lucky on the judged seeds. Without it, both steps use all seeds. All entrants
    choose from the same grid, so none is favoured.
    """
    curves_by_entrant: dict[str, list[Curves]] = {}
    for curve in curves:
        curves_by_entrant.setdefault(curve.entrant, []).append(curve)
    if BASELINE not in curves_by_entrant:
        raise RheoscopeError(
            Message(
                "entrants are compared with {baseline!r}, which is not among {entrants}",
                baseline=BASELINE,
                entrants=", ".join(curves_by_entrant),
            ),
            Advice("", f"--mechanisms {','.join([BASELINE, *curves_by_entrant])}"),
        )
    seeds = curves_by_entrant[BASELINE][0].seeds
    half = len(seeds) // 2
    if halves and half < 2:
        raise RheoscopeError(
            Message("halves needs at least 4 seeds, got {seeds}; add seeds or leave halves out", seeds=len(seeds))
        )
    rate_slice, judged_slice = (slice(0, half), slice(half, None)) if halves else (slice(None), slice(None))
    best_by_entrant = {
        name: _judged_curves(candidates, (judged_rates or {}).get(name), rate_slice)
        for name, candidates in curves_by_entrant.items()
    }
    baseline = best_by_entrant[BASELINE]
    target = default_target(baseline, judged_slice) if target is None else target
    differences = {
        name: paired_difference(curve.final_loss[judged_slice], baseline.final_loss[judged_slice])
        for name, curve in best_by_entrant.items()
    }
    compared_names = [name for name in best_by_entrant if name != BASELINE]
    p = torch.stack([differences[name].p for name in compared_names]) if compared_names else torch.empty(0)
    verdict_words = verdicts(p, torch.tensor([bool(differences[name].is_behind) for name in compared_names]))
    p_and_verdict = dict(
        zip(compared_names, zip(holm_p_values(p).tolist(), verdict_words, strict=True), strict=True)
    ) | {BASELINE: (torch.nan, "")}
    target_tokens = {name: tokens_to_target(target, curve)[judged_slice] for name, curve in best_by_entrant.items()}
    rows = [
        EntrantComparison(
            curve,
            differences[name],
            *p_and_verdict[name],
            target_tokens[name],
            tokens_ratio(target_tokens[name], target_tokens[BASELINE]),
            _difference_at_rate(curves_by_entrant[name], baseline, judged_slice),
        )
        for name, curve in sorted(best_by_entrant.items(), key=lambda item: item[0] != BASELINE)
    ]
    loss_by_rate = mean_losses([curve for candidates in curves_by_entrant.values() for curve in candidates])
    return Comparison(rows, target, seeds[judged_slice], seeds[rate_slice], loss_by_rate)


def compare_race(race_path: Path, target: float | None = None, halves: bool = False) -> Comparison:
    """Compare the entrants of a race, each at the first of its chosen rates if rates were chosen with other seeds."""
    chosen_rates = read_race_settings(race_path)["chosen"]
    judged_rates = {name: rates[0] for name, rates in chosen_rates.items()}
    return compare_entrants(read_curves(race_path), target, halves, judged_rates)


def _judged_curves(candidates: Sequence[Curves], rate: float | None, rate_slice: slice) -> Curves:
    return best_curves([curve for curve in candidates if rate in (None, curve.rate)], rate_slice)


def _difference_at_rate(candidates: Sequence[Curves], baseline: Curves, judged_slice: slice) -> Difference | None:
    """The difference at the baseline's rate; None if the entrant did not run at it."""
    at_rate = [curve for curve in candidates if curve.rate == baseline.rate]
    return (
        paired_difference(at_rate[0].final_loss[judged_slice], baseline.final_loss[judged_slice]) if at_rate else None
    )


def tokens_ratio(entrant_tokens: Float[Tensor, " s"], baseline_tokens: Float[Tensor, " s"]) -> Float[Tensor, " s"]:
    """Tokens of the entrant over tokens of the baseline, per seed. ∞ if the entrant never reached the target, NaN
    if the baseline did not.
    """
    return torch.where(baseline_tokens.isinf(), torch.nan, entrant_tokens / baseline_tokens)


def median_and_interval(x: Float[Tensor, " s"]) -> tuple[float, float, float]:
    """The median of the values that are not NaN, and its confidence interval."""
    valid = x[~x.isnan()]
    if not len(valid):
        return (torch.nan,) * 3
    central_values = valid.sort().values[[(len(valid) - 1) // 2, len(valid) // 2]]
    low, high = median_interval(valid)
    return float(central_values.mean()), float(low), float(high)
