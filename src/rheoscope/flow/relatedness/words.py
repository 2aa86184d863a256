"""Text about relatedness of words: its main number in one sentence."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_percent
from rheoscope.picture.token_labels import step_names
from rheoscope.space.words import Words

if TYPE_CHECKING:
    import xarray


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """Where words of one group are closest to each other."""
    index = int(dataset.same_group_nearer.values.argmax())
    strongest = dataset.isel(point=index)
    return Message(
        "Words are closest to their own group after {step}: in {share} of comparisons (permuted groups {null}).",
        step=step_names(dataset.point.values)[index],
        share=format_percent(float(strongest.same_group_nearer)),
        null=format_percent(float(strongest.same_group_nearer_null)),
    )


WORDS = Words(sentence=main_sentence)
