"""Text about relation swap: its main number in one sentence."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number
from rheoscope.space.words import Words

if TYPE_CHECKING:
    import xarray


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """What a swap of all weights and one of all values change."""
    weights, values = (format_number(float(dataset.kl_all_layers.sel(swap=swap))) for swap in ("weights", "values"))
    return Message(
        "The other text's attention weights change the prediction by a KL of {weights} nats, and its values by {values}.",
        weights=weights,
        values=values,
    )


WORDS = Words(sentence=main_sentence)
