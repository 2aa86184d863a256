"""Llama and its relatives (Mistral, Qwen2, SmolLM): pre-norm RMSNorm, rotary positions, grouped heads, gated MLP."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from rheoscope.pretrained.family.parts import (
    rms_norm,
    rotary_position,
    separate_projections,
    softmax_attention,
)  # fmt: skip
from rheoscope.running.stream import ModelDescription, Tap, pre_norm_taps
from rheoscope.space.head import Heads
from rheoscope.space.step import EMBED

MODEL_TYPES = ("llama", "mistral", "qwen2")
KNOWN_FIELDS = frozenset({
    "num_attention_heads", "num_key_value_heads", "head_dim", "attention_bias", "attention_dropout", "rope_parameters",
    "rms_norm_eps", "max_position_embeddings", "sliding_window", "use_sliding_window", "max_window_layers", "layer_types",
})  # fmt: skip


def describe(network: Any) -> ModelDescription:
    return describe_decoder(network, heads)


def describe_decoder(network: Any, make_heads: Callable[[Any, Any, int], Heads]) -> ModelDescription:
    """A Llama-like decoder whose heads are described by `make_heads(layer, inner_model, layer_index)`."""
    inner = getattr(network, "model", network)
    layers = list(inner.layers)
    return ModelDescription(
        embed_tap=Tap(EMBED, layers[0], "in"),
        layer_taps=pre_norm_taps(layers, "post_attention_layernorm", "self_attn"),
        layer_heads=tuple(make_heads(layer, inner, layer_index) for layer_index, layer in enumerate(layers)),
        attention_modules=tuple(layer.self_attn for layer in layers),
        output_projections=tuple(layer.self_attn.o_proj for layer in layers),
        mlps=tuple(partial(mlp, layer) for layer in layers),
        embedding=inner.embed_tokens,
        final_norm=rms_norm(inner.norm),
    )


def mlp(layer: Any, x: Tensor) -> Tensor:
    return layer.mlp(layer.post_attention_layernorm(x))


def sliding_window(config: Any, layer_index: int) -> int | None:
    """The sliding window of a layer: in all layers (Mistral, Phi-3), or in those whose type says so (Qwen)."""
    if config.model_type == "llama":
        return None  # Hugging Face's Llama ignores a window in its config
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None and layer_types[layer_index] != "sliding_attention":
        return None
    return getattr(config, "sliding_window", None)


def heads(layer: Any, inner: Any, layer_index: int) -> Heads:
    attn = layer.self_attn
    return Heads(
        **separate_projections(attn.q_proj, attn.k_proj, attn.v_proj, attn.o_proj, attn.head_dim),
        scale=attn.scaling,
        mechanism=softmax_attention(
            attn.scaling, True, sliding_window(inner.config, layer_index), rotary_position(inner.rotary_emb, attn)
        ),
        norm=rms_norm(layer.input_layernorm),
    )
