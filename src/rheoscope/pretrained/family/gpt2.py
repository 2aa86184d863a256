"""GPT-2: pre-norm LayerNorm, learned positions added to the embedding, one fused projection for q, k and v."""

from functools import partial
from typing import Any

from torch import Tensor

from rheoscope.pretrained.family.parts import (
    layer_norm,
    output_heads,
    softmax_attention,
    split_heads,
    to_heads,
)  # fmt: skip
from rheoscope.running.stream import ModelDescription, Tap, pre_norm_taps
from rheoscope.space.head import Heads
from rheoscope.space.step import EMBED

MODEL_TYPES = ("gpt2",)
KNOWN_FIELDS = frozenset({
    "n_head", "num_attention_heads", "attn_pdrop", "scale_attn_weights", "scale_attn_by_inverse_layer_idx",
    "reorder_and_upcast_attn", "n_positions", "layer_norm_epsilon",
})  # fmt: skip


def describe(network: Any) -> ModelDescription:
    inner = getattr(network, "transformer", network)
    blocks = list(inner.h)
    return ModelDescription(
        embed_tap=Tap(EMBED, blocks[0], "in"),
        layer_taps=pre_norm_taps(blocks, "ln_2", "attn"),
        layer_heads=tuple(heads(block, network.config.n_head) for block in blocks),
        attention_modules=tuple(block.attn for block in blocks),
        output_projections=tuple(block.attn.c_proj for block in blocks),
        mlps=tuple(partial(mlp, block) for block in blocks),
        embedding=inner.wte,
        final_norm=layer_norm(inner.ln_f),
    )


def mlp(block: Any, x: Tensor) -> Tensor:
    return block.mlp(block.ln_2(x))


def heads(block: Any, n_heads: int) -> Heads:
    attn = block.attn
    (W, b), (W_O, b_O) = split_heads(attn.c_attn, 3 * n_heads), output_heads(attn.c_proj, n_heads)
    assert b is not None, "GPT-2 projections have biases"
    (W_Q, W_K, W_V), (b_Q, b_K, b_V) = W.chunk(3), b.chunk(3)

    def project(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = to_heads(attn.c_attn(u), attn.head_dim).chunk(3, 1)
        return q, k, v

    return Heads(
        W_Q,
        W_K,
        W_V,
        W_O,
        attn.scaling,
        softmax_attention(attn.scaling),
        project,
        b_Q,
        b_K,
        b_V,
        b_O,
        layer_norm(block.ln_1),
    )
