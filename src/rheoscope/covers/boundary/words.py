"""Text about boundary: its main number in one sentence."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number
from rheoscope.space.words import Words
from rheoscope.statistics.field_summaries import median_of

if TYPE_CHECKING:
    import xarray


def main_sentence(dataset: "xarray.Dataset") -> Message | None:
    """How far another prefix turns the shared tokens."""
    others, last = dataset.isel(text=slice(1, None)), int(dataset.layer[-1])
    return Message(
        "At layer {layer}, another prefix turns the shared tokens by {angle} rad, and by {final} after repetition "
        "(different tokens {null}).",
        layer=last,
        angle=format_number(median_of(others.input_angle.sel(layer=last))),
        final=format_number(median_of(others.final_angle.sel(layer=last))),
        null=format_number(median_of(dataset.input_angle_null.sel(layer=last))),
    )


WORDS = Words(sentence=main_sentence)
