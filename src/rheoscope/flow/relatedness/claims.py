"""The claim that the relatedness of words is kept from the embedding to the last layer."""

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.flow.relatedness.analysis import (
    CARRIERS,
    DEFAULT_WORDS_FILE,
    WordList,
    default_word_list,
    nearer_fraction,
    residual_ranks,
    word_distances,
)
from rheoscope.messages.message import Message
from rheoscope.space.claim import Claim, ClaimPart, ClaimSample, Measured
from rheoscope.space.model import Model, Text

CHANCE = 0.5
"""The mean share over all permutations of the words among the groups, whatever the distances."""


def measure(sample: ClaimSample) -> dict[str, Measured]:
    embedding, last = group_shares(sample.model, default_word_list(), CARRIERS)
    return {
        "embedding": Measured(embedding, torch.full_like(embedding, CHANCE)),
        "kept": Measured(last - embedding),
    }


def group_shares(model: Model, words: WordList, carriers: tuple[Text, ...]) -> Float[Tensor, "2 group"]:
    """The share of comparisons in which related words are closer (AUC), per group, at the embedding and at the end."""
    distances = word_distances(model, words, carriers, "sphere", None, selected_points=[0, -1])
    nearness, _ = residual_ranks(-distances.mean_distances, words.confounders(distances.token_counts))
    groups = range(len(words.group_names))
    return torch.stack([nearer_fraction(nearness, words.group_index == group) for group in groups], -1)


CLAIMS = (
    Claim(
        order=13,
        name="relatedness",
        statement=Message("Related words are close at the embedding and stay so until the last layer"),
        parts=(
            ClaimPart(
                "embedding",
                Message(
                    "share of comparisons in which two words of a group are closer than one of them and another word (AUC), at "
                    "the embedding. Frequency, spelling and length are controlled for"
                ),
                0.05,
                bounds=(-0.5, 0.5),
            ),
            ClaimPart(
                "kept",
                Message("the same share at the last layer minus that at the embedding"),
                0.05,
                allows_loss=True,
                bounds=(-1.0, 1.0),
            ),
        ),
        reason=Message("a difference of .05 changes the answer of one comparison in twenty"),
        null=Message("groups permuted among the words; no loss in the second part"),
        random_models="untrained",
        measure=measure,
        needs_words=True,
        document="C",
        unit=Message("groups"),
        word_file=DEFAULT_WORDS_FILE,
    ),
)
