"""The results of all analyses of a text in a model, as one frozen value for every renderer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from textwrap import shorten
from typing import TYPE_CHECKING, Literal

import numpy as np

from rheoscope.messages.advice import Advice
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

    `datasets` are the results by key: the name of the analysis, with a suffix if it ran more than once. `skipped` holds the
    error of every analysis without a result, and `failed_keys` are those with an internal error. `has_nulls` is False if nulls
    were left out for speed. `card` is the card of the model, if there is one. `surface` is where reasons are shown: their advice
    is Python code or a command line. `text_options` give a text from a file to another command: `--file notes.txt`.
    """

    view: View
    token_strings: TokenLabels
    trace: Trace | None
    datasets: Datasets = field(default_factory=dict)
    skipped: dict[str, RheoscopeError] = field(default_factory=dict)
    failed_keys: tuple[str, ...] = ()
    has_nulls: bool = True
    card: "xarray.Dataset | None" = None
    surface: Literal["python", "shell"] = "python"
    text_options: str = ""

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

    def with_failure(self, key: str, error: Exception) -> "Results":
        """The same with an analysis that raised: skipped after a RheoscopeError, failed after any other error."""
        if isinstance(error, RheoscopeError):
            reason = RheoscopeError(error.message, error.advice)  # without the traceback, which holds tensors
            return replace(self, skipped=self.skipped | {key: reason})
        text = shorten(f"{type(error).__name__}: {error}", MAX_ERROR_CHARS, placeholder=" …")
        reason = RheoscopeError(Message("internal error ({error}); please report it", error=text))
        failed_keys = tuple(dict.fromkeys((*self.failed_keys, key)))
        return replace(self, skipped=self.skipped | {key: reason}, failed_keys=failed_keys)

    def reason(self, key: str) -> Message:
        """Why an analysis has no result, with its advice as the surface shows it."""
        if key not in self.skipped:
            return Message("{analysis} did not run", analysis=key)
        error = self.skipped[key]
        if error.advice is not None and error.advice.shell.startswith("--"):  # options of another command
            command = f"rheoscope analyse {key.split()[0]} {error.advice.shell}"
            error = RheoscopeError(error.message, Advice(error.advice.python, command))
        return error.on(self.surface)

    @property
    def reasons(self) -> dict[str, Message]:
        """Why each skipped analysis has no result."""
        return {key: self.reason(key) for key in self.skipped}

    def numbers_on_card(self, line: str) -> np.ndarray:
        """The number of a line of the story in every text of the model's card, sorted. Empty without a card."""
        names = (line_on_card(line, str(self.view.facts.get("side", ""))), line)
        name = next((name for name in names if self.card is not None and name in self.card.get("line", ())), None)
        if self.card is None or "story_number" not in self.card or name is None:
            return np.empty(0)
        values = self.card.story_number.sel(line=name).values
        return np.sort(values[np.isfinite(values)])

    @property
    def n_ordinary_tokens(self) -> int:
        """The number of tokens that are not massive."""
        return len(self.required_trace) - len(self.required_trace.massive_tokens())

    @property
    def required_trace(self) -> Trace:
        """The Trace, which must exist."""
        assert self.trace is not None
        return self.trace


def line_on_card(line: str, side: str) -> str:
    """The name of a line of the story on a card. That of an encoder-decoder has the line of both sides.

    >>> line_on_card("movement", ""), line_on_card("movement", "target")
    ('movement', 'target.movement')
    """
    return f"{side}.{line}" if side else line
