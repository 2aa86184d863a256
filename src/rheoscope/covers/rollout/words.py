"""Text about rollout: its main number in one sentence."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number
from rheoscope.space.words import Words

if TYPE_CHECKING:
    import xarray


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """Whether rollout agrees with the Jacobian."""
    return Message(
        "Rollout correlates by {correlation} with the Jacobian of the last points; uniform attention gives {null}.",
        correlation=format_number(float(dataset.correlation)),
        null=format_number(float(dataset.correlation_null)),
    )


WORDS = Words(sentence=main_sentence)
