"""Text about charts: its main number in one sentence."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number
from rheoscope.space.words import Words

if TYPE_CHECKING:
    import xarray


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """How many flat pieces cover the last cloud."""
    last = dataset.isel(point=-1)
    return Message(
        "{count} flat pieces of dimension {dimension} cover the last cloud; "
        "neighbouring tangent spaces differ by {angle} rad (null {null}).",
        count=int(last.chart_count),
        dimension=int(last.flat_dimension),
        angle=format_number(float(last.angle)),
        null=format_number(float(last.angle_null)),
    )


WORDS = Words(sentence=main_sentence)
