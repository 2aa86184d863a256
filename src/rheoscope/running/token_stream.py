"""Tokens that any model generates, one after the other, with its key/value cache."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator

from rheoscope.running.cached_network import CachedNetwork, refuse_generation
from rheoscope.running.encoder_decoder import EncoderDecoder
from rheoscope.running.runner import RunnableModel
from rheoscope.running.sampling import check_sampling, sample_token

Sampling = tuple[float, int | None, float | None, int]
"""Temperature, top k, top p and the seed."""


def stream_tokens(model: RunnableModel, prompt: Any, tokens: int, sampling: Sampling) -> Iterator[int]:
    """New tokens until one ends the text, which is not among them, until the context is full, or until there are `tokens`.

    An encoder-decoder reads the prompt as its source.

    **Laws** Greedy tokens are those of `rs.generate`, which also observes them.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> "".join(model.token_strings(list(stream_tokens(model, "The keys to the", 3, (0.0, None, None, 0)))))
    ' keys are'
    """
    check_sampling(*sampling[:3])
    network, ids = start_network(model, prompt, tokens)
    n_new = count_new_tokens(model.view.context_length, len(ids), tokens)
    return _stream(network, ids, n_new, sampling, model.device)


def _stream(
    network: CachedNetwork, ids: list[int], n_new: int, sampling: Sampling, device: torch.device
) -> Iterator[int]:
    temperature, top_k, top_p, seed = sampling
    generator = Generator(device).manual_seed(seed)
    for _ in range(n_new):
        logits = network.read(torch.tensor([ids], device=device))
        ids = [int(sample_token(logits, temperature, top_k, top_p, generator))]
        if ids[0] in network.stop_ids:
            return
        yield ids[0]


def start_network(model: RunnableModel, prompt: Any, tokens: int) -> tuple[CachedNetwork, list[int]]:
    """A network with an empty cache, and the tokens that it reads first. An encoder-decoder has read its source."""
    if not model.view.predicts_next_token:
        raise refuse_generation(model.view)
    if isinstance(model, EncoderDecoder):
        network = model.cached_network(tokens + 1, model.pad_sources([model.source_ids(prompt)])[0])
        return network, network.start_ids
    ids = model.ids(prompt)
    return model.cached_network(len(ids) + tokens), ids.tolist()


def count_new_tokens(context: int | None, n_prompt: int, tokens: int) -> int:
    """The number of tokens that may follow a prompt. The last one need not be read, so it may lie behind the context.

    >>> count_new_tokens(None, 10, 5), count_new_tokens(12, 10, 5)
    (5, 3)
    """
    return tokens if context is None else min(tokens, context + 1 - n_prompt)
