"""GPT-NeoX and Pythia: LayerNorm before, rotary on part of each head, q, k, v interleaved head by head in one projection.

With parallel blocks attention and MLP read the same point: the midpoint is attention first, and no module reads it.
"""

from functools import partial
from typing import Any

from torch import Tensor

from rheoscope.pretrained.family.parts import (
    joined,
    layer_norm,
    softmax_attention,
    split,
    to_heads,
    turned,
)  # fmt: skip
from rheoscope.running.stream import Description, Tap, pre_norm_taps
from rheoscope.space.head import Heads
from rheoscope.space.step import EMBED, Step

KNOWN = frozenset({
    "num_attention_heads", "attention_bias", "attention_dropout", "rope_parameters", "rotary_pct", "rotary_emb_base",
    "layer_norm_eps", "max_position_embeddings", "use_parallel_residual",
})  # fmt: skip


def describe(network: Any) -> Description:
    inner = getattr(network, "gpt_neox", network)
    layers = list(inner.layers)
    parallel = bool(network.config.use_parallel_residual)
    return Description(
        start=Tap(EMBED, layers[0], "in"),
        layers=parallel_taps(layers) if parallel else pre_norm_taps(layers, "post_attention_layernorm", "attention"),
        blocks=tuple(heads(layer, inner, network.config.num_attention_heads) for layer in layers),
        attentions=tuple(layer.attention for layer in layers),
        projections=tuple(layer.attention.dense for layer in layers),
        mlps=tuple(partial(mlp, layer) for layer in layers),
        embed=inner.embed_in,
        final_norm=layer_norm(inner.final_layer_norm),
    )


def parallel_taps(layers: list[Any]) -> tuple[tuple[Tap, ...], ...]:
    return tuple(
        (Tap(Step(i, "resid_mid"), layer.attention, "out", added=True), Tap(Step(i, "resid_post"), layer, "out"))
        for i, layer in enumerate(layers)
    )


def mlp(layer: Any, x: Tensor) -> Tensor:
    return layer.mlp(layer.post_attention_layernorm(x))


def heads(layer: Any, inner: Any, count: int) -> Heads:
    attn = layer.attention
    (W, b), (W_O, b_O) = split(attn.query_key_value, count), joined(attn.dense, count)
    W_Q, W_K, W_V = W.chunk(3, -1)
    b_Q, b_K, b_V = (None, None, None) if b is None else b.chunk(3, -1)

    def project(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = to_heads(attn.query_key_value(u), 3 * attn.head_size).chunk(3, -1)
        return q, k, v

    mechanism = softmax_attention(attn.scaling, position=turned(inner.rotary_emb, attn))
    norm = layer_norm(layer.input_layernorm)
    return Heads(W_Q, W_K, W_V, W_O, attn.scaling, mechanism, project, b_Q, b_K, b_V, b_O, norm)
