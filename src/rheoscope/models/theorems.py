"""What the mathematics states of the parts around attention, measured on our own Transformer with random weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from rheoscope.attention.laws import gap
from rheoscope.attention.theorems import Theorem, drawn
from rheoscope.models.config import Config
from rheoscope.models.transformer import FFN, Block, CrossAttention, Transformer, build

N, WIDTH = 6, 8
IDS = torch.tensor([[3, 1, 4, 1, 5, 2]])


def small(**more: Any) -> Config:
    """One layer of the Transformer of 2017."""
    usual: dict[str, Any] = {"vocabulary": 9, "width": WIDTH, "depth": 1, "heads": 2, "position": "none", "bias": True}
    return Config(**(usual | {"norm": "layer", "ffn": "relu"} | more))


def stirred(make: Callable[..., Any], *given: Any) -> Any:
    """In float64, every number drawn, and the same ones always: gains of 1 and biases of 0 would hide what they do."""
    with torch.random.fork_rng():
        module = make(*given).double().requires_grad_(False)
    for at, parameter in enumerate(module.parameters()):
        parameter.copy_(0.5 * drawn(at, *parameter.shape))
    return module


def feed_forward() -> float:
    ffn, x = stirred(FFN, small()), drawn(1, 1, N, WIDTH)
    (W, b), (W2, b2) = ((part.weight.T, part.bias) for part in (ffn.read, ffn.write))
    alone = torch.stack([torch.clamp(row @ W + b, min=0) @ W2 + b2 for row in x[0]])
    return gap(ffn(x)[0], alone)


def _steps(block: Block, x: Tensor, pre: bool) -> Tensor:
    """Attention, then the FFN, each with its skip and its norm, written out."""
    steps = ((block.norm_attention, block.attention), (block.norm_ffn, block.ffn))
    for norm, move in steps:

        def normed(y: Tensor, norm: Any = norm) -> Tensor:
            return layer_norm(y, (WIDTH,), norm.weight, norm.bias, norm.eps)

        x = x + move(normed(x)) if pre else normed(x + move(x))
    return x


def post_norm() -> float:
    block, x = stirred(Block, small(placement="post"), False), drawn(1, 1, N, WIDTH)
    return gap(block(x, None, None, None), _steps(block, x, pre=False))


def pre_norm() -> float:
    block, x = stirred(Block, small(placement="pre"), False), drawn(1, 1, N, WIDTH)
    return gap(block(x, None, None, None), _steps(block, x, pre=True))


def future_is_unseen() -> float:
    """How far the logits of the first four tokens move when the last two become others."""
    model: Transformer = stirred(build, small(form="decoder", depth=2))
    other = IDS.clone()
    other[0, 4:] = torch.tensor([7, 8])
    return gap(model(other)[:, :4], model(IDS)[:, :4])


def cross_attention() -> float:
    """Queries from the target, keys and values from the source, head by head."""
    cross, x, memory = stirred(CrossAttention, small()), drawn(1, 1, 3, WIDTH), drawn(2, 1, N, WIDTH)
    q, (k, v) = cross.ask(x)[0], cross.read(memory)[0].chunk(2, -1)
    heads = [slice(0, 4), slice(4, 8)]
    out = [(q[:, at] @ k[:, at].mT / 2).softmax(-1) @ v[:, at] for at in heads]
    return gap(cross(x, memory)[0], cross.write(torch.cat(out, -1)))


THEOREMS = (
    Theorem("3.3", "the FFN max(0, xW + b)W' + b' moves every token by itself", "feed_forward", feed_forward),
    Theorem("3.4", "post-norm: LayerNorm(x + Sublayer(x))", "post_norm", post_norm),
    Theorem("3.4", "pre-norm: x + Sublayer(LayerNorm(x))", "pre_norm", pre_norm),
    Theorem("3.5", "a decoder's tokens do not depend on later ones", "future_is_unseen", future_is_unseen),
    Theorem(
        "3.5",
        "a decoder reads the encoder: its queries, the source's keys and values",
        "cross_attention",
        cross_attention,
    ),
)
