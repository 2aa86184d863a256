"""Text about head statistics: its main number in one sentence."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number, format_percent
from rheoscope.space.words import Words
from rheoscope.statistics.field_summaries import median_of

if TYPE_CHECKING:
    import xarray


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """Over how many tokens the median head spreads, and how far away they are."""
    return Message(
        "The median head spreads its attention over {n} tokens at a mean distance of {distance}; {first} goes to the first token.",
        n=format_number(float(np.exp(median_of(dataset.entropy)))),
        distance=format_number(median_of(dataset.attention_distance)),
        first=format_percent(median_of(dataset.first_token_weight)),
    )


WORDS = Words(sentence=main_sentence)
