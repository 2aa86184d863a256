"""OPT: LayerNorm before (after, and embeddings narrower than E, in the 350m model), learned positions, scaled queries."""

from functools import partial
from typing import Any

from torch import Tensor

from rheoscope.pretrained.family.parts import (
    apart,
    layer_norm,
    softmax_attention,
)  # fmt: skip
from rheoscope.running.stream import Description, Tap, post_norm_taps, pre_norm_taps
from rheoscope.space.head import Heads, Norm
from rheoscope.space.step import EMBED

KNOWN = frozenset({
    "num_attention_heads", "attention_dropout", "do_layer_norm_before", "layer_norm_elementwise_affine", "enable_bias",
    "max_position_embeddings", "word_embed_proj_dim", "_remove_final_layer_norm",
})  # fmt: skip


def describe(network: Any) -> Description:
    inner = getattr(network, "model", network).decoder
    layers = list(inner.layers)
    after = tuple(
        post_norm_taps(i, layer, layer.self_attn_layer_norm, layer.final_layer_norm) for i, layer in enumerate(layers)
    )
    return Description(
        start=Tap(EMBED, layers[0], "in"),
        layers=pre_norm_taps(layers, "final_layer_norm", "self_attn") if network.config.do_layer_norm_before else after,
        blocks=tuple(heads(layer) for layer in layers),
        attentions=tuple(layer.self_attn for layer in layers),
        projections=tuple(layer.self_attn.out_proj for layer in layers),
        mlps=tuple(partial(mlp, layer) for layer in layers),
        embed=inner.embed_tokens,
        final_norm=layer_norm(inner.final_layer_norm),
        into=None if inner.project_in is None else inner.project_in.weight.T,
        out_of=None if inner.project_out is None else inner.project_out.weight.T,
    )


def mlp(layer: Any, x: Tensor) -> Tensor:
    u = layer.final_layer_norm(x) if layer.do_layer_norm_before else x
    return layer.fc2(layer.activation_fn(layer.fc1(u)))


def heads(layer: Any) -> Heads:
    attn = layer.self_attn
    return Heads(
        **apart(attn.q_proj, attn.k_proj, attn.v_proj, attn.out_proj, attn.head_dim),
        scale=attn.scaling,
        mechanism=softmax_attention(attn.scaling),
        norm=layer_norm(layer.self_attn_layer_norm) if layer.do_layer_norm_before else Norm(),
    )
