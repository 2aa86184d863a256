"""Theorems about the parts around attention, measured on a Transformer of this project with random weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from rheoscope.attention.laws import relative_difference
from rheoscope.attention.theorem import Theorem
from rheoscope.attention.theorem_inputs import random_normal
from rheoscope.messages.message import Message
from rheoscope.models.config import Config
from rheoscope.models.transformer import FFN, Block, CrossAttention, Transformer, build

N, WIDTH = 6, 8
IDS = torch.tensor([[3, 1, 4, 1, 5, 2]])


def small_config(**overrides: Any) -> Config:
    """A one-layer Transformer as in Vaswani et al. (2017)."""
    defaults: dict[str, Any] = {
        "vocabulary": 9,
        "width": WIDTH,
        "depth": 1,
        "heads": 2,
        "position": "none",
        "bias": True,
    }
    return Config(**(defaults | {"norm": "layer", "ffn": "relu"} | overrides))


def with_random_weights(make: Callable[..., Any], *args: Any) -> Any:
    """A module in float64 with fixed random parameters, because gains of 1 and biases of 0 would hide errors."""
    with torch.random.fork_rng():
        module = make(*args).double().requires_grad_(False)
    for seed, parameter in enumerate(module.parameters()):
        parameter.copy_(0.5 * random_normal(seed, *parameter.shape))
    return module


def feed_forward() -> float:
    ffn, x = with_random_weights(FFN, small_config()), random_normal(1, 1, N, WIDTH)
    (W, b), (W2, b2) = ((part.weight.T, part.bias) for part in (ffn.read, ffn.write))
    expected = torch.stack([torch.clamp(row @ W + b, min=0) @ W2 + b2 for row in x[0]])
    return relative_difference(ffn(x)[0], expected)


def _reference_block(block: Block, x: Tensor, is_pre_norm: bool) -> Tensor:
    """Attention and FFN, each with its residual connection and its norm, written out."""
    sublayers = ((block.norm_attention, block.attention), (block.norm_ffn, block.ffn))
    for norm, sublayer in sublayers:

        def apply_norm(y: Tensor, norm: Any = norm) -> Tensor:
            return layer_norm(y, (WIDTH,), norm.weight, norm.bias, norm.eps)

        x = x + sublayer(apply_norm(x)) if is_pre_norm else apply_norm(x + sublayer(x))
    return x


def post_norm() -> float:
    block, x = with_random_weights(Block, small_config(placement="post"), False), random_normal(1, 1, N, WIDTH)
    return relative_difference(block(x, None, None, None), _reference_block(block, x, is_pre_norm=False))


def pre_norm() -> float:
    block, x = with_random_weights(Block, small_config(placement="pre"), False), random_normal(1, 1, N, WIDTH)
    return relative_difference(block(x, None, None, None), _reference_block(block, x, is_pre_norm=True))


def future_is_unseen() -> float:
    """How much the logits of the first four tokens change when the last two tokens change."""
    model: Transformer = with_random_weights(build, small_config(form="decoder", depth=2))
    changed_ids = IDS.clone()
    changed_ids[0, 4:] = torch.tensor([7, 8])
    return relative_difference(model(changed_ids)[:, :4], model(IDS)[:, :4])


def cross_attention() -> float:
    """Queries from the target, keys and values from the source, computed head by head."""
    cross, x, memory = (
        with_random_weights(CrossAttention, small_config()),
        random_normal(1, 1, 3, WIDTH),
        random_normal(2, 1, N, WIDTH),
    )
    q, (k, v) = cross.ask(x)[0], cross.read(memory)[0].chunk(2, -1)
    heads = [slice(0, 4), slice(4, 8)]
    out = [(q[:, columns] @ k[:, columns].mT / 2).softmax(-1) @ v[:, columns] for columns in heads]
    return relative_difference(cross(x, memory)[0], cross.write(torch.cat(out, -1)))


THEOREMS = (
    Theorem(
        "3.3", Message("the FFN max(0, xW + b)W' + b' acts on every token separately"), "feed_forward", feed_forward
    ),
    Theorem("3.4", Message("post-norm: LayerNorm(x + Sublayer(x))"), "post_norm", post_norm),
    Theorem("3.4", Message("pre-norm: x + Sublayer(LayerNorm(x))"), "pre_norm", pre_norm),
    Theorem(
        "3.5", Message("the outputs of a decoder do not depend on later tokens"), "future_is_unseen", future_is_unseen
    ),
    Theorem(
        "3.5",
        Message("cross attention: queries come from the target, keys and values from the source"),
        "cross_attention",
        cross_attention,
    ),
)
