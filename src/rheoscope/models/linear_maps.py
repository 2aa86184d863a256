"""Linear maps and embeddings with the initial weights of GPT-2."""

from typing import final

from torch import nn

from rheoscope.models.config import Config

INIT_STD = 0.02
"""The standard deviation of initial weights (GPT-2)."""


@final
class Linear(nn.Linear):
    """nn.Linear with the initial weights of GPT-2: N(0, .02²), biases 0."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=INIT_STD)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


@final
class Embedding(nn.Embedding):
    """nn.Embedding with the initial weights of GPT-2: N(0, .02²)."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=INIT_STD)


def make_unembedding(config: Config, embedding: nn.Embedding) -> Linear:
    """The map from points to logits, which is the embedding itself if the two are tied."""
    linear = Linear(config.width, 0 if config.tied else config.vocabulary, bias=False)
    if config.tied:  # no weights of its own
        linear.weight, linear.out_features = embedding.weight, config.vocabulary
    return linear
