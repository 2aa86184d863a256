"""How the effects of an atlas go with the number of parameters."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rheoscope.report.atlas_tables import CloudTraits
from rheoscope.report.card_blocks import claims_of
from rheoscope.space.claim import Claim
from rheoscope.statistics.nulls import holm_p_values

if TYPE_CHECKING:
    import xarray

MIN_MODELS_FOR_SIZE = 6
"""Fewer models say nothing about size: the smallest two-sided p-value of five ranks is .017."""


@dataclass(frozen=True, eq=False)
class SizeTrend:
    """Spearman's rank correlation of the effect of a claim with the number of parameters, over models. p is adjusted (Holm)."""

    claim: Claim
    rho: float
    n_models: int
    p_value: float


def size_trends(result: "xarray.Dataset", traits: Mapping[str, CloudTraits]) -> list[SizeTrend]:
    """The trend of every claim with enough models. An encoder–decoder counts once, with the mean of its clouds."""
    from scipy.stats import spearmanr

    tests = []
    for claim in claims_of(result):
        effects: dict[str, list[float]] = {}
        sizes: dict[str, int] = {}
        for name in map(str, result.model.values):
            row = result.sel(claim=claim.name, model=name)
            if str(row.answer.values):
                effects.setdefault(traits[name].model, []).append(float(row.estimate))
                sizes[traits[name].model] = traits[name].parameters
        if len(effects) >= MIN_MODELS_FOR_SIZE:
            means = [sum(values) / len(values) for values in effects.values()]
            tests.append((claim, spearmanr(list(sizes.values()), means), len(effects)))
    if not tests:
        return []
    adjusted = holm_p_values(torch.tensor([float(test.pvalue) for _, test, _ in tests])).tolist()
    return [SizeTrend(claim, float(test.statistic), n, p) for (claim, test, n), p in zip(tests, adjusted, strict=True)]
