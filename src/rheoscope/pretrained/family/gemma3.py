"""Gemma-3 (text): gains 1 + weight, QK-norm, windows with their own rotary tables, norms after attention and MLP."""

from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from rheoscope.pretrained.family import llama
from rheoscope.pretrained.family.parts import rms_norm, rotary_position, separate_projections, softmax_attention
from rheoscope.pretrained.family.qwen3 import with_qk_norm
from rheoscope.running.stream import ModelDescription, pre_norm_taps
from rheoscope.space.head import Heads
from rheoscope.space.model_parts import Norm
from rheoscope.space.safe_arithmetic import at_least_float32

MODEL_TYPES = ("gemma3_text",)
KNOWN_FIELDS = llama.KNOWN_FIELDS | {
    "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
    "sliding_window_pattern", "_sliding_window_pattern", "rope_local_base_freq",
}  # fmt: skip


def describe(network: Any) -> ModelDescription:
    inner = getattr(network, "model", network)
    layers = list(inner.layers)
    return replace(
        llama.describe_decoder(network, heads),
        layer_taps=pre_norm_taps(layers, "pre_feedforward_layernorm", "post_attention_layernorm"),
        mlps=tuple(partial(mlp, layer) for layer in layers),
        final_norm=gemma_norm(inner.norm),
    )


def gemma_norm(module: Any) -> Norm:
    return rms_norm(module, 1.0 + at_least_float32(module.weight))


def mlp(layer: Any, x: Tensor) -> Tensor:
    return layer.post_feedforward_layernorm(layer.mlp(layer.pre_feedforward_layernorm(x)))


def heads(layer: Any, inner: Any, layer_index: int) -> Heads:
    attn = layer.self_attn
    position = rotary_position(inner.rotary_emb, attn, layer_type=attn.layer_type)
    plain_heads = Heads(
        **separate_projections(attn.q_proj, attn.k_proj, attn.v_proj, attn.o_proj, attn.head_dim),
        scale=attn.scaling,
        mechanism=softmax_attention(attn.scaling, attn.is_causal, attn.sliding_window, position),
        norm=gemma_norm(layer.input_layernorm),
        q_norm=gemma_norm(attn.q_norm),
        k_norm=gemma_norm(attn.k_norm),
        output_norm=gemma_norm(layer.post_attention_layernorm),
    )
    return with_qk_norm(plain_heads, attn)
