"""A statement and its chance: a number, what its null gives, and how often chance alone would go as far."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from rheoscope.statistics.nulls import student, student_p, two_sided

LEVEL = 0.05
"""How often a text of noise may get any statement at all: a statement is sure when its p, times all that were tested, is below."""
Values = np.ndarray | Sequence[float]


@dataclass(frozen=True)
class Statement:
    """What is said (`text`) of a number (`value`) whose null gives `null` ± `spread`, and how often chance goes as far (`p`).

    `tries` counts the places it was looked for in: the best of them is told, and pays for all. `q` is p, corrected for
    everything that was tested (`corrected`).
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
    def sure(self) -> bool:
        return self.q <= LEVEL


def corrected(tested: Sequence[Statement], family: int) -> list[Statement]:
    """The same with q = p · tries · family: the chance that any of a family of this size is said of noise.

    Unlike a correction that needs all p-values, it can be told as soon as one number is known.

    >>> corrected([Statement("", "a", 1.0, 0.0, 0.1, p=0.01)], 4)[0].q
    0.04
    """
    return [replace(one, q=min(1.0, one.p * one.tries * family) if one.p == one.p else one.p) for one in tested]


def from_draws(
    text: str, analysis: str, value: float, drawn: Values, tries: int = 1, permuted: int | None = None
) -> Statement:
    """A number beside draws of its null: by Student's law, as one more draw.

    Where draws are orders of `permuted` things, p is no smaller than the share of one order: few things are far from any law.

    >>> round(from_draws("", "", 9.0, [-1.0, 0.0, 1.0, 0.5], permuted=4).p, 4)  # of 24 orders
    0.0417
    """
    null = torch.as_tensor(np.asarray(drawn), dtype=torch.float64)
    null = null[null.isfinite()]
    p = float(student_p(torch.tensor(value, dtype=torch.float64), null))
    p = p if permuted is None or math.isnan(p) else max(p, 1 / math.factorial(min(permuted, 20)))
    mean, spread = (float(null.mean()), float(null.std())) if len(null) > 1 else (float("nan"), float("nan"))
    return Statement(text, analysis, value, mean, spread, p, tries)


def from_moments(text: str, analysis: str, value: float, null: float, spread: float, tries: int = 1) -> Statement:
    """A number beside the exact mean and standard deviation of its null: by the normal law; no spread, no chance known."""
    z = (value - null) / spread if spread > 0 else float("nan")
    return Statement(text, analysis, value, null, spread, float(two_sided(torch.tensor(z, dtype=torch.float64))), tries)


def from_units(text: str, analysis: str, values: Values, null: float) -> Statement:
    """A mean over units that are independent under the null: t of the mean."""
    seen = np.asarray(values, dtype=float)
    seen = seen[np.isfinite(seen)]
    if len(seen) < 3 or not seen.std():
        return Statement(text, analysis, float(seen.mean()) if len(seen) else null, null, float("nan"), float("nan"))
    error = float(seen.std(ddof=1)) / math.sqrt(len(seen))
    p = float(student(torch.tensor((seen.mean() - null) / error, dtype=torch.float64), len(seen) - 1))
    return Statement(text, analysis, float(seen.mean()), null, error, p)
