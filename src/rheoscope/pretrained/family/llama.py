"""Llama and its kin (Mistral, Qwen2, SmolLM): RMSNorm before, rotary positions, grouped heads, gated MLP."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from rheoscope.pretrained.family.parts import (
    apart,
    rms_norm,
    softmax_attention,
    turned,
)  # fmt: skip
from rheoscope.running.stream import Description, Tap, pre_norm_taps
from rheoscope.space.head import Heads
from rheoscope.space.step import EMBED

KNOWN = frozenset({
    "num_attention_heads", "num_key_value_heads", "head_dim", "attention_bias", "attention_dropout", "rope_parameters",
    "rms_norm_eps", "max_position_embeddings", "sliding_window", "use_sliding_window", "max_window_layers", "layer_types",
})  # fmt: skip


def describe(network: Any) -> Description:
    return decoder(network, heads)


def decoder(network: Any, heads_of: Callable[[Any, Any, int], Heads]) -> Description:
    """A Llama-like decoder whose heads are described by `heads_of(layer, inner model, number of the layer)`."""
    inner = getattr(network, "model", network)
    layers = list(inner.layers)
    return Description(
        start=Tap(EMBED, layers[0], "in"),
        layers=pre_norm_taps(layers, "post_attention_layernorm", "self_attn"),
        blocks=tuple(heads_of(layer, inner, i) for i, layer in enumerate(layers)),
        attentions=tuple(layer.self_attn for layer in layers),
        projections=tuple(layer.self_attn.o_proj for layer in layers),
        mlps=tuple(partial(mlp, layer) for layer in layers),
        embed=inner.embed_tokens,
        final_norm=rms_norm(inner.norm),
    )


def mlp(layer: Any, x: Tensor) -> Tensor:
    return layer.mlp(layer.post_attention_layernorm(x))


def window(config: Any, layer: int) -> int | None:
    """The sliding window of a layer: for all layers (Mistral, Phi-3) or for those whose type says so (Qwen)."""
    if config.model_type == "llama":
        return None  # Hugging Face's Llama has no window, whatever its config says
    types = getattr(config, "layer_types", None)
    if types is not None and types[layer] != "sliding_attention":
        return None
    return getattr(config, "sliding_window", None)


def heads(layer: Any, inner: Any, number: int) -> Heads:
    attn = layer.self_attn
    return Heads(
        **apart(attn.q_proj, attn.k_proj, attn.v_proj, attn.o_proj, attn.head_dim),
        scale=attn.scaling,
        mechanism=softmax_attention(attn.scaling, True, window(inner.config, number), turned(inner.rotary_emb, attn)),
        norm=rms_norm(layer.input_layernorm),
    )
