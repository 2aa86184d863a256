"""Text about heat: its main number in one sentence."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number
from rheoscope.space.words import Words
from rheoscope.statistics.field_summaries import median_of

if TYPE_CHECKING:
    import xarray


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """How far repeated attention is from a diffusion."""
    last = dataset.isel(time=-1)
    return Message(
        "After {time} applications, the median head is {distance} from the heat kernel in total variation (permuted weights {null}).",
        time=int(last.time),
        distance=format_number(median_of(last.heat_distance)),
        null=format_number(median_of(last.heat_distance_null)),
    )


WORDS = Words(sentence=main_sentence)
