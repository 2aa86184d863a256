"""Text about patch estimates: its main number in one sentence."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number, format_percent
from rheoscope.space.words import Words
from rheoscope.statistics.field_summaries import largest_head

if TYPE_CHECKING:
    import xarray


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """The head with the largest estimate, and how good the estimates are."""
    name, effect = largest_head(dataset.output.sel(direction="restore"))
    return Message(
        "By the estimates, {name} restores most of the difference: {effect}. "
        "Estimates of heads correlate by {correlation} with exact effects.",
        name=name,
        effect=format_percent(effect),
        correlation=format_number(float(dataset.head_correlation)),
    )


WORDS = Words(sentence=main_sentence)
