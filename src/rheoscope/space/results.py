"""The results of all analyses of a text in a model, as one frozen value for every renderer."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from textwrap import shorten
from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.trace import Trace
from rheoscope.space.view import View

if TYPE_CHECKING:
    import xarray

MAX_ERROR_CHARS = 200
"""The longest error text that a line shows."""
TokenLabels = Callable[[Sequence[int]], list[str]]
Datasets = dict[str, "xarray.Dataset"]


@dataclass(frozen=True, eq=False)
class Results:
    """A model (its `view`, and `token_strings` for ids), a text (`trace`, None for analyses of weights), and the results.

    `datasets` are the results by key: the name of the analysis, with a suffix if it ran more than once. `skipped` is the reason
    why an analysis has no result, and `failed_keys` are those with an internal error. `has_nulls` is False if nulls were left
    out for speed. `controls` are the results of the same text in untrained models of the same architecture, if they were
    requested.
    """

    view: View
    token_strings: TokenLabels
    trace: Trace | None
    datasets: Datasets = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed_keys: tuple[str, ...] = ()
    has_nulls: bool = True
    controls: tuple["Results", ...] = ()

    def has(self, *names: str) -> bool:
        """Whether all these analyses have a result."""
        return all(name in self.datasets for name in names)

    def has_run(self, *names: str) -> bool:
        """Whether all these analyses have run, with a result or without."""
        return all(name in self.datasets or name in self.skipped for name in names)

    def with_result(self, key: str, dataset: "xarray.Dataset") -> "Results":
        return replace(self, datasets=self.datasets | {key: dataset})

    def merged_with(self, other: "Results") -> "Results":
        """The same with the results and skipped analyses of others."""
        failed_keys = tuple(dict.fromkeys((*self.failed_keys, *other.failed_keys)))
        return replace(
            self, datasets=self.datasets | other.datasets, skipped=self.skipped | other.skipped, failed_keys=failed_keys
        )

    def with_skipped(self, key: str, reason: str) -> "Results":
        return replace(self, skipped=self.skipped | {key: reason})

    def with_failure(self, key: str, error: Exception) -> "Results":
        """The same with an analysis that raised: a user's mistake is the reason for skipping it, else it is an internal error."""
        if isinstance(error, RheoscopeError):
            return self.with_skipped(key, str(error))
        message = shorten(f"{type(error).__name__}: {error}", MAX_ERROR_CHARS, placeholder=" …")
        updated = replace(self, failed_keys=tuple(dict.fromkeys((*self.failed_keys, key))))
        return updated.with_skipped(key, Message("internal error ({error}); please report it", error=message))

    def control_values(self, name: str, measure: Callable[["xarray.Dataset"], float]) -> list[float]:
        """A number for every control that has it."""
        values = [measure(control.datasets[name]) for control in self.controls if control.has(name)]
        return [number for number in values if math.isfinite(number)]

    @property
    def n_ordinary_tokens(self) -> int:
        """The number of tokens that are not massive."""
        return len(self.required_trace) - len(self.required_trace.massive_tokens())

    @property
    def required_trace(self) -> Trace:
        """The Trace, which must exist."""
        assert self.trace is not None
        return self.trace
