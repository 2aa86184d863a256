"""Phi-3: Llama with q, k, v in one projection (queries, then keys, then values)."""

from typing import Any

from torch import Tensor

from rheoscope.pretrained.family import llama
from rheoscope.pretrained.family.parts import joined, rms_norm, softmax_attention, split, to_heads, turned
from rheoscope.running.stream import Description
from rheoscope.space.head import Heads

KNOWN = llama.KNOWN | {"resid_pdrop", "original_max_position_embeddings", "partial_rotary_factor"}


def describe(network: Any) -> Description:
    return llama.decoder(network, heads)


def heads(layer: Any, inner: Any, number: int) -> Heads:
    attn, config = layer.self_attn, inner.config
    parts = [config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads]
    (W, _), (W_O, b_O) = split(attn.qkv_proj, sum(parts)), joined(attn.o_proj, parts[0])
    W_Q, W_K, W_V = W.split(parts)

    def project(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = to_heads(attn.qkv_proj(u), attn.head_dim).split(parts, 1)
        return q, k, v

    mechanism = softmax_attention(attn.scaling, True, llama.window(config, number), turned(inner.rotary_emb, attn))
    norm = rms_norm(layer.input_layernorm)
    return Heads(W_Q, W_K, W_V, W_O, attn.scaling, mechanism, project, b_O=b_O, norm=norm)
