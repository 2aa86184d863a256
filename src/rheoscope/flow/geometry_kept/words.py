"""Text about preserved geometry: its main number in one sentence."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number, format_percent
from rheoscope.space.words import Words

if TYPE_CHECKING:
    import xarray


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """How similar the last cloud is to the first."""
    last = dataset.isel(point=-1, reference=0)
    return Message(
        "At the end, distances between tokens correlate by {rsa} with those at the embedding, "
        "and {neighbours} of the neighbours are the same.",
        rsa=format_number(float(last.rsa)),
        neighbours=format_percent(float(last.neighbours)),
    )


WORDS = Words(sentence=main_sentence)
