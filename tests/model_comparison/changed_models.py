"""Models that differ from a case of the tests in one head."""

import copy
from functools import cache
from typing import Any

import torch

import rheoscope as rs
from tests.cases import network, text

TEXTS = [text(seed) for seed in range(5)]


def changed(name: str, layer: int, head: int, *parts: str, dtype: torch.dtype = torch.float64) -> Any:
    """The model with other weights in one head: in these of W_Q, W_K, W_V and W_O."""
    net = copy.deepcopy(network(name, dtype))
    heads = rs.load(net).view.layer_heads[layer]
    with torch.no_grad():
        for part in parts:
            W = getattr(heads, part)[head]
            W.add_(0.3 * W.std() * torch.randn(W.shape, generator=torch.Generator().manual_seed(1)).to(W))
    return rs.load(net)


@cache
def deep_llama() -> Any:
    """A network of five layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(
            LlamaConfig(
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=5,
                num_attention_heads=4,
                num_key_value_heads=2,
                vocab_size=60,
            )
        )
