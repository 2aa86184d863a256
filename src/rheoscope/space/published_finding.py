"""A published finding about the flow of tokens, declared by the analysis that measures it in the file `published.py` of its folder."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.messages.message import Message

if TYPE_CHECKING:
    import pandas

CLEAR_DIFFERENCE = 2.0
"""Two places of a curve differ if their means differ by more than this many standard errors of the difference."""


@dataclass(frozen=True, eq=False)
class ModelCurves:
    """What the atlas stores about one cloud of a model: facts about it, curves over its depth and its heads (`layer_tables`)."""

    facts: Mapping[str, Any]
    curves: "pandas.DataFrame"
    heads: "pandas.DataFrame"

    def curve(self, field: str) -> "pandas.DataFrame":
        """The rows of one field that have a value, in the order of the stream. Without rows where the model does not have it."""
        return self.curves[(self.curves.field == field) & np.isfinite(self.curves["mean"])].reset_index(drop=True)

    def number(self, field: str) -> float:
        """A number of the whole text; NaN where the model does not have it."""
        rows = self.curve(field)
        return float(rows["mean"].iloc[0]) if len(rows) else float("nan")


def is_below(curve: "pandas.DataFrame", first: int, second: int) -> bool:
    """Whether a curve is lower at row `first` than at row `second`, by more than chance.

    >>> import pandas as pd
    >>> curve = pd.DataFrame({"mean": [0.0, 1.0, 1.1], "sd": [1.0, 1.0, 1.0], "n": [50, 50, 50]})
    >>> is_below(curve, 0, 1), is_below(curve, 1, 2)
    (True, False)
    """
    low, high = curve.iloc[first], curve.iloc[second]
    error = np.sqrt(low.sd**2 / low.n + high.sd**2 / high.n)
    return bool(high["mean"] - low["mean"] > CLEAR_DIFFERENCE * error)


@dataclass(frozen=True)
class Comparison:
    """Whether a model agrees with a finding, and the numbers behind it. None: the finding predicts nothing for this model."""

    agrees: bool | None
    numbers: Message


@dataclass(frozen=True, eq=False)
class PublishedFinding:
    """A finding of a paper, and how the atlas compares a model with it.

    `statement` is what the paper reports, `source` its address, `criterion` says when a model agrees. `compare` returns None
    for a model that the finding is not about, or that lacks the measurements.
    """

    order: int
    name: str
    statement: Message
    source: str
    criterion: Message
    compare: Callable[[ModelCurves], Comparison | None]
