"""Text about density clusters: its main number in one sentence."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_percent
from rheoscope.space.words import Words

if TYPE_CHECKING:
    import xarray


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """How many dense clusters there are at the end."""
    return Message(
        "HDBSCAN finds {count} clusters at the end, and {share} of the tokens belong to none.",
        count=int(dataset.cluster_count[-1]),
        share=format_percent(float(dataset.unclustered_share[-1])),
    )


WORDS = Words(sentence=main_sentence)
