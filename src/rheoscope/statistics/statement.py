"""A statement about a number with its null distribution and its p-value."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from rheoscope.statistics.nulls import moment_p_values, normal_two_sided_p, student_two_sided_p

SIGNIFICANCE_LEVEL = 0.05
"""The family-wise error rate on random text: a statement is significant if its p, times the number of tests, is below it."""
Values = np.ndarray | Sequence[float]


@dataclass(frozen=True)
class Statement:
    """A statement (`text`) about a number (`value`) with the null `null` ± `spread` and the p-value `p`.

    `tries` is the number of places that were searched for the best value: p is multiplied by it. `q` is p corrected for all
    tests (`correct_for_family`).
    """

    text: str
    analysis: str
    value: float
    null: float
    spread: float
    p: float
    tries: int = 1
    q: float = float("nan")

    @property
    def is_significant(self) -> bool:
        return self.q <= SIGNIFICANCE_LEVEL


def correct_for_family(statements: Sequence[Statement], family_size: int) -> list[Statement]:
    """The same statements with q = p · tries · family_size, a bound on the family-wise error rate (Bonferroni).

    It needs one p-value only, so a statement can be shown before the other analyses end.

    >>> correct_for_family([Statement("", "a", 1.0, 0.0, 0.1, p=0.01)], 4)[0].q
    0.04
    """
    return [
        replace(
            statement,
            q=min(1.0, statement.p * statement.tries * family_size) if statement.p == statement.p else statement.p,
        )
        for statement in statements
    ]


def from_draws(
    text: str, analysis: str, value: float, null_draws: Values, tries: int = 1, n_permuted: int | None = None
) -> Statement:
    """A number and draws from its null: p is that of one more draw, by the moments of the draws.

    If the draws permute `n_permuted` things, p is at least 1 / (number of orders): with few things no normal law holds.

    >>> round(from_draws("", "", 9.0, [-1.0, 0.0, 1.0, 0.5], n_permuted=4).p, 4)  # 24 orders
    0.0417
    """
    null_samples = torch.as_tensor(np.asarray(null_draws), dtype=torch.float64)
    null_samples = null_samples[null_samples.isfinite()]
    p = float(moment_p_values(torch.tensor(value, dtype=torch.float64), null_samples))
    p = p if n_permuted is None or math.isnan(p) else max(p, 1 / math.factorial(min(n_permuted, 20)))
    mean, null_sd = (
        (float(null_samples.mean()), float(null_samples.std()))
        if len(null_samples) > 1
        else (float("nan"), float("nan"))
    )
    return Statement(text, analysis, value, mean, null_sd, p, tries)


def from_moments(text: str, analysis: str, value: float, null: float, null_sd: float, tries: int = 1) -> Statement:
    """A number and the exact mean and standard deviation of its null, by the normal law; p is NaN if the sd is 0."""
    z = (value - null) / null_sd if null_sd > 0 else float("nan")
    return Statement(
        text, analysis, value, null, null_sd, float(normal_two_sided_p(torch.tensor(z, dtype=torch.float64))), tries
    )


def from_units(text: str, analysis: str, values: Values, null: float) -> Statement:
    """A mean over units that are independent under the null, tested by a t-test."""
    finite_values = np.asarray(values, dtype=float)
    finite_values = finite_values[np.isfinite(finite_values)]
    if len(finite_values) < 3 or not finite_values.std():
        return Statement(
            text,
            analysis,
            float(finite_values.mean()) if len(finite_values) else null,
            null,
            float("nan"),
            float("nan"),
        )
    standard_error = float(finite_values.std(ddof=1)) / math.sqrt(len(finite_values))
    p = float(
        student_two_sided_p(
            torch.tensor((finite_values.mean() - null) / standard_error, dtype=torch.float64), len(finite_values) - 1
        )
    )
    return Statement(text, analysis, float(finite_values.mean()), null, standard_error, p)
