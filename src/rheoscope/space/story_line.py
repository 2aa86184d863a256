"""A line of the story of a text: what a person would say about it, with the measured numbers and their null."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message
from rheoscope.space.results import Results

if TYPE_CHECKING:
    import xarray

    from rheoscope.picture.picture import Panel


@dataclass(frozen=True, eq=False)
class StoryPicture:
    """The panels that go with a line. `order` is their place among all pictures of a story.

    `numbers` are arrays that the panels draw and that no analysis returns. They become fields of the story.
    """

    order: int
    panels: "Callable[[Results], Sequence[Panel]]"
    numbers: "Callable[[Results], Mapping[str, xarray.DataArray]]" = lambda results: {}


@dataclass(frozen=True, eq=False)
class StoryLine:
    """One line of a story. The analysis that measures it declares it in its `words.py`.

    `order` is its place. `needs` are the analyses whose results it reads, and `required_fields` those of their fields that not
    every text or model has. A text needs at least `min_tokens` tokens that are not massive. `deeper` is the command that shows
    more, and `picture` what a page shows with it. `number` is the number of the line that can be compared between texts; a card
    stores it for its texts. Lines that `reads_source` exist for the target of an encoder-decoder only. A line describes one text;
    it never answers yes or no.
    """

    order: int
    name: str
    title: str
    needs: tuple[str, ...]
    deeper: str
    compose: Callable[[Results], Message]
    required_fields: tuple[str, ...] = ()
    min_tokens: int = 1
    picture: StoryPicture | None = None
    number: Callable[[Results], float] | None = None
    reads_source: bool = False

    def measured_number(self, results: Results) -> float:
        """The number of the line, or NaN if the line or this text has none."""
        is_known = self.number is not None and all(results.has(name) for name in self.needs)
        return self.number(results) if self.number is not None and is_known else math.nan

    def has_result(self, results: Results) -> bool:
        """Whether the text and the results have everything that the line needs."""
        return self._missing(results) is None

    def sentence(self, results: Results) -> str:
        """The line, or the reason why there is none."""
        return self._missing(results) or self.compose(results)

    def _missing(self, results: Results) -> Message | None:
        """The reason why there is no line, or None."""
        missing_analyses = [name for name in self.needs if not results.has(name)]
        if missing_analyses:
            return results.reason(missing_analyses[0])
        missing_fields = [
            field for field in self.required_fields if not any(field in results.datasets[name] for name in self.needs)
        ]
        if missing_fields:
            return Message("this text in this model has no number for this line")
        if results.n_ordinary_tokens < self.min_tokens:
            return Message("a line of the story needs at least {n} tokens; use a longer text", n=self.min_tokens)
        return None


def typical_ends(results: Results, line: str, format_end: Callable[[float], str]) -> tuple[str, str] | None:
    """The ends of the central 80 % of a line's number over the texts of the model's card. None without a card."""
    numbers = results.numbers_on_card(line)
    if not len(numbers):
        return None
    low, high = np.quantile(numbers, (0.1, 0.9)).tolist()
    return format_end(low), format_end(high)


def typical_range(results: Results, line: str, format_end: Callable[[float], str]) -> Message | str:
    """The same ends as text after a semicolon. Empty without a card."""
    ends = typical_ends(results, line, format_end)
    return "" if ends is None else Message("; usual here {low} to {high}", low=ends[0], high=ends[1])


def percentile(results: Results, line: StoryLine) -> float:
    """The share of the card's texts with a smaller number, in percent; NaN without a card."""
    numbers, number = results.numbers_on_card(line.name), line.measured_number(results)
    return 100 * float((numbers < number).mean()) if len(numbers) and math.isfinite(number) else math.nan
