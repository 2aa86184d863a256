"""Text about word senses: its main number in one sentence."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number
from rheoscope.picture.token_labels import step_names
from rheoscope.space.words import Words

if TYPE_CHECKING:
    import xarray


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """Where senses are separated most."""
    index = int(dataset.effect.values.argmax())
    strongest = dataset.isel(point=index)
    return Message(
        "Senses are separated most after {step}: by {effect} standard deviations (permuted senses {null}).",
        step=step_names(dataset.point.values)[index],
        effect=format_number(float(strongest.effect)),
        null=format_number(float(strongest.effect_null)),
    )


WORDS = Words(sentence=main_sentence)
