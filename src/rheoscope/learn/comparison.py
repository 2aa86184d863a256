"""The result of a race: every entrant compared with the baseline, in its loss and in the tokens to a target loss."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.learn import race_files
from rheoscope.learn.contrasts import (
    Contrast,
    Difference,
    RateCandidates,
    detectable_difference,
    make_contrasts,
    paired_difference,
)
from rheoscope.learn.curves import Curves, best_curves, default_target, mean_losses, read_curves
from rheoscope.learn.entrants import BASELINE
from rheoscope.learn.target_tokens import TokenRatio, interpolate_target_tokens, tokens_ratio
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError


@dataclass(frozen=True, eq=False)
class EntrantComparison:
    """One entrant compared with the baseline, each at its chosen rate, and both at the baseline's."""

    curves: Curves
    difference: Difference
    p_holm: float
    verdict: str
    detectable: float
    tokens_to_target: Float[Tensor, " s"]
    tokens_ratio: TokenRatio
    at_baseline_rate: Contrast | None = None

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
    n_contrasts: int
    """The number of contrasts that the p values are corrected for."""


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
    curves_by_entrant = _group_by_entrant(curves)
    seeds = curves_by_entrant[BASELINE][0].seeds
    half = len(seeds) // 2
    if halves and half < 2:
        raise RheoscopeError(
            Message("halves needs at least 4 seeds, got {seeds}; add seeds or leave halves out", seeds=len(seeds))
        )
    rate_slice, judged_slice = (slice(0, half), slice(half, None)) if halves else (slice(None), slice(None))
    candidates = {
        name: RateCandidates(all_rates, _judged_curves(all_rates, (judged_rates or {}).get(name), rate_slice))
        for name, all_rates in curves_by_entrant.items()
    }
    baseline = candidates[BASELINE].chosen
    contrasts = make_contrasts(candidates, BASELINE, judged_slice, halves or bool(judged_rates))
    n_contrasts = sum(contrast.p_holm == contrast.p_holm for contrast in contrasts.values())
    target = default_target(baseline, judged_slice) if target is None else target
    rows = [
        _compare(entrant.chosen, baseline, contrasts, n_contrasts, target, judged_slice)
        for name, entrant in sorted(candidates.items(), key=lambda item: item[0] != BASELINE)
    ]
    loss_by_rate = mean_losses([curve for all_rates in curves_by_entrant.values() for curve in all_rates])
    return Comparison(rows, target, seeds[judged_slice], seeds[rate_slice], loss_by_rate, n_contrasts)


def _group_by_entrant(curves: Iterable[Curves]) -> dict[str, list[Curves]]:
    """The curves of every entrant. Raises without the baseline."""
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
    return curves_by_entrant


def _compare(
    curves: Curves,
    baseline: Curves,
    contrasts: Mapping[tuple[str, float], Contrast],
    n_contrasts: int,
    target: float,
    judged_slice: slice,
) -> EntrantComparison:
    """The row of an entrant, from its contrasts. The baseline has no verdict."""
    contrast = contrasts.get((curves.entrant, curves.rate))
    if contrast is None:
        contrast = Contrast(
            paired_difference(curves.final_loss[judged_slice], baseline.final_loss[judged_slice]), torch.nan, ""
        )
    target_tokens, baseline_tokens = (target_tokens_of(target, curve)[judged_slice] for curve in (curves, baseline))
    return EntrantComparison(
        curves,
        contrast.difference,
        contrast.p_holm,
        contrast.verdict,
        detectable_difference(float(contrast.difference.sd), len(target_tokens), max(1, n_contrasts)),
        target_tokens,
        tokens_ratio(target_tokens, baseline_tokens, float(curves.tokens[-1])),
        contrasts.get((curves.entrant, baseline.rate)),
    )


def compare_race(race_path: Path, target: float | None = None, halves: bool = False) -> Comparison:
    """Compare the entrants of a race, each at the first of its chosen rates if rates were chosen with other seeds."""
    judged_rates = race_files.judged_rates(race_files.read_race_settings(race_path))
    return compare_entrants(read_curves(race_path), target, halves, judged_rates)


def target_tokens_of(target: float, curves: Curves) -> Float[Tensor, " s"]:
    """The number of tokens after which each seed first reaches the target loss; ∞ if it never does."""
    return interpolate_target_tokens(target, torch.tensor(curves.tokens, dtype=torch.float64), curves.loss.double())


def _judged_curves(all_rates: list[Curves], rate: float | None, rate_slice: slice) -> Curves:
    return best_curves([curve for curve in all_rates if rate in (None, curve.rate)], rate_slice)
