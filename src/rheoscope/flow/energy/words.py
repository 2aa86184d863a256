"""Text about energy: its main number in one sentence."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number
from rheoscope.space.words import Words
from rheoscope.statistics.field_summaries import median_of

if TYPE_CHECKING:
    import xarray


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """Whether heads move tokens up their own energy."""
    return Message(
        "{n} of {total} heads are gradient-like; the median cosine of an update with the gradient of its own energy is {cosine}.",
        n=int(dataset.gradient_like.sum()),
        total=dataset.gradient_like.size,
        cosine=format_number(median_of(dataset.cosine)),
    )


WORDS = Words(sentence=main_sentence)
