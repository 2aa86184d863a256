"""Text about attention patching: its main number in one sentence."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number
from rheoscope.space.words import Words

if TYPE_CHECKING:
    import xarray


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """The step along the gradient that lowers the loss most."""
    best, unchanged = (
        dataset.isel(eta=int(dataset.loss.values.argmin())),
        dataset.isel(eta=int(np.abs(dataset.eta.values).argmin())),
    )
    return Message(
        "Attention moved by η = {eta:g} along the gradient of its scores changes the loss from {before} to {after} nats.",
        eta=float(best.eta),
        before=format_number(float(unchanged.loss)),
        after=format_number(float(best.loss)),
    )


WORDS = Words(sentence=main_sentence)
