"""What was asked of a text in a model, and what came of it: one frozen value that every renderer reads."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from textwrap import shorten
from typing import TYPE_CHECKING

from rheoscope.shapes import RheoscopeError
from rheoscope.space.trace import Trace
from rheoscope.space.view import View

if TYPE_CHECKING:
    import xarray

LONGEST = 200
"""Letters of an error that a line can carry."""
Words = Callable[[Sequence[int]], list[str]]
Found = dict[str, "xarray.Dataset"]


@dataclass(frozen=True, eq=False)
class Answers:
    """A model (its `view`, and `words` for token ids), the text (`trace`, None where weights alone were asked), and the answers.

    `found` are Datasets under their keys: the name of the analysis, with a word behind it where it was asked more than once.
    `left_out` says why an analysis has no answer, `failed` which of them have none by a fault of the program. `nulls` is False
    where they were left out to be fast. `controls` are the same text in the same architecture at initial weights, as far as they
    were asked.
    """

    view: View
    words: Words
    trace: Trace | None
    found: Found = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    failed: tuple[str, ...] = ()
    nulls: bool = True
    controls: tuple["Answers", ...] = ()

    def knows(self, *names: str) -> bool:
        """Whether all these have an answer."""
        return all(name in self.found for name in names)

    def asked(self, *names: str) -> bool:
        """Whether all these were asked, with an answer or without."""
        return all(name in self.found or name in self.left_out for name in names)

    def with_answer(self, key: str, dataset: "xarray.Dataset") -> "Answers":
        return replace(self, found=self.found | {key: dataset})

    def joined(self, other: "Answers") -> "Answers":
        """The same with what others found, or left out."""
        failed = tuple(dict.fromkeys((*self.failed, *other.failed)))
        return replace(self, found=self.found | other.found, left_out=self.left_out | other.left_out, failed=failed)

    def without(self, key: str, reason: str) -> "Answers":
        return replace(self, left_out=self.left_out | {key: reason})

    def after(self, key: str, error: Exception) -> "Answers":
        """The same without an answer that ended in an error: refused with a reason, or failed by a fault of the program."""
        if isinstance(error, RheoscopeError):
            return self.without(key, str(error))
        said = shorten(f"{type(error).__name__}: {error}", LONGEST, placeholder=" …")
        failed = replace(self, failed=tuple(dict.fromkeys((*self.failed, key))))
        return failed.without(key, f"a fault of the program ({said}); please report it")

    def untrained(self, name: str, value: Callable[["xarray.Dataset"], float]) -> list[float]:
        """A number of every control that has it."""
        found = [value(control.found[name]) for control in self.controls if control.knows(name)]
        return [one for one in found if math.isfinite(one)]

    @property
    def text(self) -> Trace:
        """The Trace, where there must be one."""
        assert self.trace is not None
        return self.trace
