"""Text about frames: its main number in one sentence."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_percent
from rheoscope.space.words import Words

if TYPE_CHECKING:
    import xarray


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """How much of the cloud the plane of the frames shows."""
    shares = dataset.explained_variance.values
    return Message(
        "The plane of these frames shows {most} of the variance at best and {last} after the last layer.",
        most=format_percent(float(shares.max())),
        last=format_percent(float(shares[-1])),
    )


WORDS = Words(sentence=main_sentence)
