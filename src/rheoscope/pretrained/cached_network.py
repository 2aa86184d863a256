"""Networks of transformers during generation, with the key/value cache that the network itself returns."""

import inspect
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.running.cached_network import CachedNetwork
from rheoscope.running.eval_mode import eval_mode
from rheoscope.running.network_walk import modules_of
from rheoscope.shapes import RheoscopeError

CACHE = "past_key_values"
"""The name of the cache in the arguments and in the output of a network."""


class TransformersReader:
    """Reads new tokens with the cache of the last call. `inputs` are passed in every call, such as the output of an encoder."""

    def __init__(self, network: Any, ids_name: str, inputs: dict[str, Any]) -> None:
        self.network, self.ids_name, self.inputs = network, ids_name, inputs
        parameters = inspect.signature(network.forward).parameters
        if CACHE not in parameters:
            raise no_cache(network)
        if "logits_to_keep" in parameters:  # else a long prompt computes logits that nobody reads
            self.inputs = self.inputs | {"logits_to_keep": 1}
        # caches of networks with recurrent layers count no tokens, so positions are passed, as `generate` of transformers does
        self.takes_positions = ids_name == "input_ids" and "position_ids" in parameters
        self.cache: Any = None
        self.n_read = 0
        self.modules = modules_of(network)

    @torch.no_grad()
    def __call__(self, ids: Int[Tensor, "1 m"]) -> Float[Tensor, "1 vocabulary"]:
        inputs = self.inputs | {self.ids_name: ids, CACHE: self.cache, "use_cache": True}
        if self.takes_positions and self.n_read:
            inputs["position_ids"] = torch.arange(self.n_read, self.n_read + ids.shape[1], device=ids.device)[None]
        with eval_mode(self.network, self.modules):
            outputs = self.network(**inputs)
        self.n_read += ids.shape[1]
        self.cache = outputs.get(CACHE)
        if self.cache is None:
            raise no_cache(self.network)
        return outputs.logits[:, -1]


def cached_decoder(network: Any) -> CachedNetwork:
    """A decoder that continues a text."""
    return CachedNetwork(TransformersReader(network, "input_ids", {}), stop_ids(network))


@torch.no_grad()
def cached_pair(network: Any, source: Tensor) -> CachedNetwork:
    """A decoder that has read its source: token ids, or the features of a sound or an image."""
    with eval_mode(network):
        memory = network.get_encoder()(**{network.main_input_name: source})
    reader = TransformersReader(network, "decoder_input_ids", {"encoder_outputs": memory})
    return CachedNetwork(reader, stop_ids(network), [start_id(network)])


def start_id(network: Any) -> int:
    """The token with which every target starts: as `generate` of transformers chooses it."""
    config = network.config
    start = config.decoder_start_token_id if config.decoder_start_token_id is not None else config.bos_token_id
    if start is None:
        raise RheoscopeError(
            Message(
                "the config of {network} names no token with which a target starts; set decoder_start_token_id",
                network=type(network).__name__,
            ),
            Advice("model.network.config.decoder_start_token_id = 0"),
        )
    return int(start)


def stop_ids(network: Any) -> frozenset[int]:
    """The tokens that end a text, by the generation settings of the network, or else by its config."""
    settings = getattr(network, "generation_config", None) or network.config
    end = settings.eos_token_id
    return frozenset(() if end is None else (end,) if isinstance(end, int) else end)


def no_cache(network: Any) -> RheoscopeError:
    return RheoscopeError(
        Message(
            "{network} has no key/value cache, so it cannot generate token by token", network=type(network).__name__
        ),
        Advice("model.trace(text)"),
    )
