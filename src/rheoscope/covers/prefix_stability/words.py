"""Text about prefix stability: its main number in one sentence."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number
from rheoscope.space.words import Words
from rheoscope.statistics.field_summaries import median_of

if TYPE_CHECKING:
    import xarray


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """How similar the scores of a pair are after another prefix."""
    return Message(
        "After another prefix, the median head keeps its scores with a rank correlation of {stability}; position alone gives {null}.",
        stability=format_number(median_of(dataset.stability)),
        null=format_number(median_of(dataset.stability_null)),
    )


WORDS = Words(sentence=main_sentence)
