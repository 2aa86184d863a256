"""OPT: pre-norm LayerNorm and learned positions; the 350m model has post-norm and embeddings narrower than E."""

from functools import partial
from typing import Any

from torch import Tensor

from rheoscope.pretrained.family.parts import (
    layer_norm,
    separate_projections,
    softmax_attention,
)  # fmt: skip
from rheoscope.running.stream import ModelDescription, Tap, post_norm_taps, pre_norm_taps
from rheoscope.space.head import Heads
from rheoscope.space.model_parts import Norm
from rheoscope.space.step import EMBED

MODEL_TYPES = ("opt",)
KNOWN_FIELDS = frozenset({
    "num_attention_heads", "attention_dropout", "do_layer_norm_before", "layer_norm_elementwise_affine", "enable_bias",
    "max_position_embeddings", "word_embed_proj_dim", "_remove_final_layer_norm",
})  # fmt: skip


def describe(network: Any) -> ModelDescription:
    inner = getattr(network, "model", network).decoder
    layers = list(inner.layers)
    post_norm_layers = tuple(
        post_norm_taps(i, layer, layer.self_attn_layer_norm, layer.final_layer_norm) for i, layer in enumerate(layers)
    )
    return ModelDescription(
        embed_tap=Tap(EMBED, layers[0], "in"),
        layer_taps=pre_norm_taps(layers, "final_layer_norm", "self_attn")
        if network.config.do_layer_norm_before
        else post_norm_layers,
        layer_heads=tuple(heads(layer) for layer in layers),
        attention_modules=tuple(layer.self_attn for layer in layers),
        output_projections=tuple(layer.self_attn.out_proj for layer in layers),
        mlps=tuple(partial(mlp, layer) for layer in layers),
        embedding=inner.embed_tokens,
        final_norm=layer_norm(inner.final_layer_norm),
        embed_projection=None if inner.project_in is None else inner.project_in.weight.T,
        unembed_projection=None if inner.project_out is None else inner.project_out.weight.T,
    )


def mlp(layer: Any, x: Tensor) -> Tensor:
    u = layer.final_layer_norm(x) if layer.do_layer_norm_before else x
    return layer.fc2(layer.activation_fn(layer.fc1(u)))


def heads(layer: Any) -> Heads:
    attn = layer.self_attn
    return Heads(
        **separate_projections(attn.q_proj, attn.k_proj, attn.v_proj, attn.out_proj, attn.head_dim),
        scale=attn.scaling,
        mechanism=softmax_attention(attn.scaling),
        norm=layer_norm(layer.self_attn_layer_norm) if layer.do_layer_norm_before else Norm(),
    )
