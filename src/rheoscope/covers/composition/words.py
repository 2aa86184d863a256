"""Text about composition: its main number in one sentence."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_fixed
from rheoscope.space.words import Words

if TYPE_CHECKING:
    import xarray


SIDES = (("head_from", "from"), ("head_to", "to"))
"""The axes of the matrix and the fields that hold the places of the strongest pairs."""


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """The pair of heads with the strongest composition."""
    kind, place = np.unravel_index(int(np.nanargmax(dataset.top_score.values)), dataset.top_score.shape)
    source, target = (dataset[side].values[int(dataset[f"top_{end}"][kind, place])] for side, end in SIDES)
    return Message(
        "{target} reads most from {source}: their {kind}-composition is {score} above that of random operators.",
        target=str(target),
        source=str(source),
        kind=str(dataset.kind.values[kind]).upper(),
        score=format_fixed(float(dataset.top_score[kind, place]), 3),
    )


WORDS = Words(sentence=main_sentence)
