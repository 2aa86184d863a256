"""Phi-3: Llama with one fused projection (queries, then keys, then values)."""

from typing import Any

from torch import Tensor

from rheoscope.pretrained.family import llama
from rheoscope.pretrained.family.parts import (
    output_heads,
    rms_norm,
    rotary_position,
    softmax_attention,
    split_heads,
    to_heads,
)
from rheoscope.running.stream import ModelDescription
from rheoscope.space.head import Heads

MODEL_TYPES = ("phi3",)
KNOWN_FIELDS = llama.KNOWN_FIELDS | {"resid_pdrop", "original_max_position_embeddings", "partial_rotary_factor"}


def describe(network: Any) -> ModelDescription:
    return llama.describe_decoder(network, heads)


def heads(layer: Any, inner: Any, layer_index: int) -> Heads:
    attn, config = layer.self_attn, inner.config
    head_counts = [config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads]
    (W, _), (W_O, b_O) = split_heads(attn.qkv_proj, sum(head_counts)), output_heads(attn.o_proj, head_counts[0])
    W_Q, W_K, W_V = W.split(head_counts)

    def project(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = to_heads(attn.qkv_proj(u), attn.head_dim).split(head_counts, 1)
        return q, k, v

    mechanism = softmax_attention(
        attn.scaling, True, llama.sliding_window(config, layer_index), rotary_position(inner.rotary_emb, attn)
    )
    norm = rms_norm(layer.input_layernorm)
    return Heads(W_Q, W_K, W_V, W_O, attn.scaling, mechanism, project, b_O=b_O, norm=norm)
