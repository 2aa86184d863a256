"""Text about decay: its main number in one sentence."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_percent
from rheoscope.space.words import Words

if TYPE_CHECKING:
    import xarray


CHANGES = ("edit", "isotropic")


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """How much of the edit and of noise is left at the end."""
    left = {
        str(name): format_percent(float(dataset.deviation_ratio.isel(step=-1).sel(change=name))) for name in CHANGES
    }
    return Message(
        "At the end, {edit} of the edit's deviation is left, compared with {isotropic} of noise of the same size.",
        **left,
    )


WORDS = Words(sentence=main_sentence)
