"""Text about the purity of clusters: its main number in one sentence."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_percent
from rheoscope.space.words import Words

if TYPE_CHECKING:
    import xarray


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """How pure the last clusters are in the first kind of label."""
    last = dataset.isel(point=-1, by=0)
    return Message(
        "At the end, {share} of the token types have the most common {label} of their cluster; permuted labels would give {null}.",
        share=format_percent(float(last.purity)),
        label=str(last.by.item()),
        null=format_percent(float(last.purity_null)),
    )


WORDS = Words(sentence=main_sentence)
