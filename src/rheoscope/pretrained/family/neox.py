"""GPT-NeoX and Pythia: pre-norm LayerNorm, rotary on part of each head, q, k and v interleaved by head.

In parallel blocks attention and MLP read the same point. The midpoint is defined as attention first, and no module reads it.
"""

from functools import partial
from typing import Any

from torch import Tensor

from rheoscope.pretrained.family.parts import (
    layer_norm,
    output_heads,
    rotary_position,
    softmax_attention,
    split_heads,
    to_heads,
)  # fmt: skip
from rheoscope.running.stream import ModelDescription, Tap, pre_norm_taps
from rheoscope.space.head import Heads
from rheoscope.space.step import EMBED, Step

MODEL_TYPES = ("gpt_neox",)
KNOWN_FIELDS = frozenset({
    "num_attention_heads", "attention_bias", "attention_dropout", "rope_parameters", "rotary_pct", "rotary_emb_base",
    "layer_norm_eps", "max_position_embeddings", "use_parallel_residual",
})  # fmt: skip


def describe(network: Any) -> ModelDescription:
    inner = getattr(network, "gpt_neox", network)
    layers = list(inner.layers)
    is_parallel = bool(network.config.use_parallel_residual)
    return ModelDescription(
        embed_tap=Tap(EMBED, layers[0], "in"),
        layer_taps=parallel_taps(layers)
        if is_parallel
        else pre_norm_taps(layers, "post_attention_layernorm", "attention"),
        layer_heads=tuple(heads(layer, inner, network.config.num_attention_heads) for layer in layers),
        attention_modules=tuple(layer.attention for layer in layers),
        output_projections=tuple(layer.attention.dense for layer in layers),
        mlps=tuple(partial(mlp, layer) for layer in layers),
        embedding=inner.embed_in,
        final_norm=layer_norm(inner.final_layer_norm),
    )


def parallel_taps(layers: list[Any]) -> tuple[tuple[Tap, ...], ...]:
    return tuple(
        (
            Tap(Step(i, "resid_mid"), layer.attention, "out", is_displacement=True),
            Tap(Step(i, "resid_post"), layer, "out"),
        )
        for i, layer in enumerate(layers)
    )


def mlp(layer: Any, x: Tensor) -> Tensor:
    return layer.mlp(layer.post_attention_layernorm(x))


def heads(layer: Any, inner: Any, n_heads: int) -> Heads:
    attn = layer.attention
    (W, b), (W_O, b_O) = split_heads(attn.query_key_value, n_heads), output_heads(attn.dense, n_heads)
    W_Q, W_K, W_V = W.chunk(3, -1)
    b_Q, b_K, b_V = (None, None, None) if b is None else b.chunk(3, -1)

    def project(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = to_heads(attn.query_key_value(u), 3 * attn.head_size).chunk(3, -1)
        return q, k, v

    mechanism = softmax_attention(attn.scaling, position=rotary_position(inner.rotary_emb, attn))
    norm = layer_norm(layer.input_layernorm)
    return Heads(W_Q, W_K, W_V, W_O, attn.scaling, mechanism, project, b_Q, b_K, b_V, b_O, norm)
