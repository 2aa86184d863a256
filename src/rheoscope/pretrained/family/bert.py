"""BERT and RoBERTa: both directions, LayerNorm after each half of a layer (post-norm), learned positions."""

from functools import partial
from typing import Any

from torch import Tensor

from rheoscope.pretrained.family.parts import apart, softmax_attention
from rheoscope.running.stream import Description, Tap, post_norm_taps
from rheoscope.space.head import Heads, Norm
from rheoscope.space.step import EMBED

KNOWN = frozenset({
    "num_attention_heads", "attention_probs_dropout_prob", "layer_norm_eps", "max_position_embeddings", "is_decoder",
    "position_embedding_type", "type_vocab_size",
})  # fmt: skip


def describe(network: Any) -> Description:
    inner = getattr(network, "bert", getattr(network, "roberta", network))
    layers = list(inner.encoder.layer)
    return Description(
        start=Tap(EMBED, layers[0], "in"),
        layers=tuple(
            post_norm_taps(i, layer, layer.attention.output.LayerNorm, layer.output.LayerNorm)
            for i, layer in enumerate(layers)
        ),
        blocks=tuple(heads(layer) for layer in layers),
        attentions=tuple(layer.attention.self for layer in layers),
        projections=tuple(layer.attention.output.dense for layer in layers),
        mlps=tuple(partial(mlp, layer) for layer in layers),
        embed=inner.embeddings.word_embeddings,
        final_norm=Norm(),
        encoder=True,
    )


def mlp(layer: Any, x: Tensor) -> Tensor:
    return layer.output.dense(layer.intermediate(x))


def heads(layer: Any) -> Heads:
    attn = layer.attention.self
    return Heads(
        **apart(attn.query, attn.key, attn.value, layer.attention.output.dense, attn.attention_head_size),
        scale=attn.scaling,
        mechanism=softmax_attention(attn.scaling, causal=attn.is_causal),
    )
