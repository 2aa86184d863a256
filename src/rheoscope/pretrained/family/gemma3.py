"""Gemma-3 (text): gains are 1 + weight, QK-norm, windows with rotary tables of their own, norms after attention and MLP."""

from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from rheoscope.pretrained.family import llama
from rheoscope.pretrained.family.parts import apart, rms_norm, softmax_attention, turned
from rheoscope.pretrained.family.qwen3 import normed
from rheoscope.running.stream import Description, pre_norm_taps
from rheoscope.space.head import Heads, Norm
from rheoscope.space.safe_arithmetic import exact

KNOWN = llama.KNOWN | {
    "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
    "sliding_window_pattern", "_sliding_window_pattern", "rope_local_base_freq",
}  # fmt: skip


def describe(network: Any) -> Description:
    inner = getattr(network, "model", network)
    layers = list(inner.layers)
    return replace(
        llama.decoder(network, heads),
        layers=pre_norm_taps(layers, "pre_feedforward_layernorm", "post_attention_layernorm"),
        mlps=tuple(partial(mlp, layer) for layer in layers),
        final_norm=one_plus(inner.norm),
    )


def one_plus(module: Any) -> Norm:
    return rms_norm(module, 1.0 + exact(module.weight))


def mlp(layer: Any, x: Tensor) -> Tensor:
    return layer.post_feedforward_layernorm(layer.mlp(layer.pre_feedforward_layernorm(x)))


def heads(layer: Any, inner: Any, number: int) -> Heads:
    attn = layer.self_attn
    rotary = turned(inner.rotary_emb, attn, layer_type=attn.layer_type)
    plain = Heads(
        **apart(attn.q_proj, attn.k_proj, attn.v_proj, attn.o_proj, attn.head_dim),
        scale=attn.scaling,
        mechanism=softmax_attention(attn.scaling, attn.is_causal, attn.sliding_window, rotary),
        norm=one_plus(layer.input_layernorm),
        q_norm=one_plus(attn.q_norm),
        k_norm=one_plus(attn.k_norm),
        after=one_plus(layer.post_attention_layernorm),
    )
    return normed(plain, attn)
