"""Networks of this project during generation, with a `GenerationCache`."""

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rheoscope.attention.zoo import ZOO
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.models.config import Config
from rheoscope.models.generation_cache import GenerationCache
from rheoscope.models.text_files import END_OF_TEXT
from rheoscope.models.transformer import Ids, Transformer, Translator
from rheoscope.models.vocabulary import END, START
from rheoscope.running.cached_network import CachedNetwork
from rheoscope.running.eval_mode import eval_mode
from rheoscope.running.network_walk import modules_of
from rheoscope.shapes import RheoscopeError


def cached_decoder(network: Transformer, tokenizer: object, n_tokens: int) -> CachedNetwork:
    """A decoder that continues a text of at most `n_tokens` tokens."""
    check_reads_rows(network.config)
    cache = GenerationCache(network.config.depth, n_tokens)
    end_id = None if tokenizer is None else tokenizer.token_to_id(END_OF_TEXT)  # type: ignore[attr-defined]
    read = partial(read_tokens, network, modules_of(network), cache)
    return CachedNetwork(read, frozenset(() if end_id is None else (end_id,)))


@torch.no_grad()
def read_tokens(
    network: Transformer, modules: list[nn.Module], cache: GenerationCache, ids: Ids
) -> Float[Tensor, "1 vocabulary"]:
    with eval_mode(network, modules):
        return network.unembed(network.stack(ids, None, cache)[:, -1])


@torch.no_grad()
def cached_translator(network: Translator, source: Ids, n_tokens: int) -> CachedNetwork:
    """A decoder that has read its source."""
    check_reads_rows(network.config)
    with eval_mode(network):
        memory = network.encoder(source, None)
    cache = GenerationCache(network.config.depth, n_tokens)
    return CachedNetwork(partial(read_target_tokens, network, cache, memory), frozenset((END,)), [START])


@torch.no_grad()
def read_target_tokens(
    network: Translator, cache: GenerationCache, memory: Float[Tensor, "1 s d"], ids: Int[Tensor, "1 m"]
) -> Float[Tensor, "1 vocabulary"]:
    with eval_mode(network):
        return network.unembed(network.decoder(ids, None, cache, memory, None)[:, -1])


def check_reads_rows(config: Config) -> None:
    """Raise for a mechanism that is defined only for whole texts, whose rows cannot be computed one by one."""
    if ZOO[config.mechanism].domain.requires_square:
        raise RheoscopeError(
            Message(
                "attention by {mechanism} reads whole texts, so it has no key/value cache", mechanism=config.mechanism
            ),
            Advice("model.trace(text)"),
        )
