"""BERT and RoBERTa: bidirectional, LayerNorm after each half-layer (post-norm), learned positions."""

from functools import partial
from typing import Any

from torch import Tensor

from rheoscope.pretrained.family.parts import separate_projections, softmax_attention
from rheoscope.running.stream import ModelDescription, Tap, post_norm_taps
from rheoscope.space.head import Heads
from rheoscope.space.model_parts import Norm
from rheoscope.space.step import EMBED

MODEL_TYPES = ("bert", "roberta")
KNOWN_FIELDS = frozenset({
    "num_attention_heads", "attention_probs_dropout_prob", "layer_norm_eps", "max_position_embeddings", "is_decoder",
    "position_embedding_type", "type_vocab_size",
})  # fmt: skip


def describe(network: Any) -> ModelDescription:
    inner = getattr(network, "bert", getattr(network, "roberta", network))
    layers = list(inner.encoder.layer)
    return ModelDescription(
        embed_tap=Tap(EMBED, layers[0], "in"),
        layer_taps=tuple(
            post_norm_taps(i, layer, layer.attention.output.LayerNorm, layer.output.LayerNorm)
            for i, layer in enumerate(layers)
        ),
        layer_heads=tuple(heads(layer) for layer in layers),
        attention_modules=tuple(layer.attention.self for layer in layers),
        output_projections=tuple(layer.attention.output.dense for layer in layers),
        mlps=tuple(partial(mlp, layer) for layer in layers),
        embedding=inner.embeddings.word_embeddings,
        final_norm=Norm(),
        is_encoder=not network.config.is_decoder,
        unembed_scale=None,
        prediction_head=prediction_head(network),
    )


def prediction_head(network: Any) -> Any:
    """The module from the last points to logits, in networks that predict masked tokens: a projection, a norm, the unembedding."""
    return getattr(getattr(network, "cls", None), "predictions", getattr(network, "lm_head", None))


def context_length(config: Any) -> int:
    """The context length. RoBERTa's positions start after the id of its padding token."""
    is_roberta = config.model_type == "roberta"
    return config.max_position_embeddings - (config.pad_token_id + 1 if is_roberta else 0)


def mlp(layer: Any, x: Tensor) -> Tensor:
    return layer.output.dense(layer.intermediate(x))


def heads(layer: Any) -> Heads:
    attn = layer.attention.self
    return Heads(
        **separate_projections(
            attn.query, attn.key, attn.value, layer.attention.output.dense, attn.attention_head_size
        ),
        scale=attn.scaling,
        mechanism=softmax_attention(attn.scaling, causal=attn.is_causal),
    )
