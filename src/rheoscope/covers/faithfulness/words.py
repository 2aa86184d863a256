"""Text about faithfulness: its main number in one sentence."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number
from rheoscope.space.words import Words

if TYPE_CHECKING:
    import xarray


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """The most faithful ranking, compared with the random one."""
    losses = dataset.excess_loss
    best = str(dataset.ranking.values[int(losses.values.argmin())])
    return Message(
        "The most faithful ranking is {ranking}: with its heads alone the loss rises by {excess} nats on average (random {null}).",
        ranking=best,
        excess=format_number(float(losses.sel(ranking=best))),
        null=format_number(float(losses.sel(ranking="random"))),
    )


WORDS = Words(sentence=main_sentence)
