"""The claim that the place of a word follows its sense."""

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.flow.senses.analysis import (
    DEFAULT_WORDS_FILE,
    SenseSentences,
    default_words,
    nearest_same_sense,
    nearest_same_sense_null,
    sense_tables,
)
from rheoscope.messages.message import Message
from rheoscope.space.claim import Claim, ClaimPart, ClaimSample, Measured
from rheoscope.space.model import Model


def measure(sample: ClaimSample) -> dict[str, Measured]:
    observed, chance = sense_shares(sample.model, default_words())
    return {"senses": Measured(observed, chance)}


def sense_shares(model: Model, words: SenseSentences) -> tuple[Float[Tensor, " word"], Float[Tensor, " word"]]:
    """The share of nearest occurrences with the same sense, mean over the layers, and its mean over permuted senses.

    The embedding is left out. There all occurrences of a word are one point, unless it includes positions.
    """
    tables = sense_tables(model, words, "sphere", None).tables
    observed, chance = (
        torch.stack([share(table)[1:].mean() for table in tables])
        for share in (nearest_same_sense, nearest_same_sense_null)
    )
    return observed, chance


CLAIMS = (
    Claim(
        order=12,
        name="senses",
        statement=Message("The place of a word follows the sense in which it is used"),
        parts=(
            ClaimPart(
                "senses",
                Message(
                    "share of occurrences of a word whose nearest other occurrence has the same sense; mean over layers after the "
                    "embedding"
                ),
                0.1,
                bounds=(-1.0, 1.0),
            ),
        ),
        reason=Message("a share that is higher by .1 puts one more occurrence in ten next to one of its own sense"),
        null=Message("senses permuted within the word"),
        random_models="untrained",
        measure=measure,
        needs_words=True,
        document="C",
        unit=Message("words"),
        word_file=DEFAULT_WORDS_FILE,
    ),
)
