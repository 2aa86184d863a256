"""Text about score attribution: its main number in one sentence."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_fixed
from rheoscope.space.words import Words
from rheoscope.statistics.field_summaries import place_of_largest

if TYPE_CHECKING:
    import xarray


def main_sentence(dataset: "xarray.Dataset") -> Message | None:
    """The pair of components that contributes most to the score."""
    place = place_of_largest(dataset.contribution)
    if not place:
        return None
    source, target = str(place["from"]), str(place["to"])
    return Message(
        "{source} in the query and {target} in the key contribute most: {value} of a score of {score}.",
        source=source,
        target=target,
        value=format_fixed(float(dataset.contribution.sel({"from": source, "to": target})), 2, True),
        score=format_fixed(float(dataset.score), 2),
    )


WORDS = Words(sentence=main_sentence)
