"""Building blocks of family descriptions: weights as heads, norms and rotary positions."""

import sys
from functools import partial
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.mask import Causal, Mask, NoMask, Window
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.position import NoPosition, Position
from rheoscope.attention.score import Gram
from rheoscope.pretrained.effective_weights import effective_weights
from rheoscope.space.model_parts import ModelRotary, Norm


def split_heads(linear: Any, n_heads: int) -> tuple[Float[Tensor, "h d k"], Float[Tensor, "h k"] | None]:
    """The rows of a projection as (h, d, k) and its bias as (h, k), as views without copies."""
    weight, bias = effective_weights(linear)
    return weight.unflatten(0, (n_heads, -1)).mT, None if bias is None else bias.unflatten(0, (n_heads, -1))


def output_heads(linear: Any, n_heads: int) -> tuple[Float[Tensor, "h e d"], Tensor | None]:
    """The output projection as (h, e, d) and its bias."""
    weight, bias = effective_weights(linear)
    return weight.T.unflatten(0, (n_heads, -1)), bias


def layer_norm(module: Any) -> Norm:
    """An nn.LayerNorm as a Norm. None gives the identity."""
    if module is None:
        return Norm()
    return Norm(module, module.weight, module.bias, module.eps, subtracts_mean=True)


def rms_norm(module: Any, gain: Tensor | None = None) -> Norm:
    """An RMSNorm of Hugging Face as a Norm. Gemma's gain is 1 + weight."""
    eps = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
    return Norm(module, module.weight if gain is None else gain, None, eps)


def rotary_position(rotary_module: Any, attention_module: Any, **layer_options: str) -> ModelRotary:
    """The model's own rotary tables and rotation function as a position."""
    apply_rotary = sys.modules[type(attention_module).__module__].apply_rotary_pos_emb

    def rotate(x: Float[Tensor, "b h n k"], positions: Tensor, sign: Literal[1, -1] = 1) -> Float[Tensor, "b h n k"]:
        cos, sin = (table.to(x.device) for table in rotary_module(x, positions[None], **layer_options))
        return apply_rotary(x, x[:, :0], cos, sign * sin)[0]  # the function also rotates keys: here none

    return ModelRotary(rotate, partial(rotate, sign=-1))


def softmax_attention(
    scale: float, causal: bool = True, window: int | None = None, position: Position | None = None
) -> Mechanism:
    """The mechanism of a standard head: scaled dot product and softmax, with an optional causal mask and window."""
    mask: Mask = Causal() if causal else NoMask()
    return Mechanism(Gram(scale=scale), mask if window is None else mask & Window(window), position or NoPosition())


def to_heads(x: Float[Tensor, "b n hk"], head_width: int) -> Float[Tensor, "b h n k"]:
    return x.unflatten(-1, (-1, head_width)).transpose(1, 2)


def separate_projections(q: Any, k: Any, v: Any, o: Any, head_width: int) -> dict[str, Any]:
    """The arguments of `Heads` for three separate projections and an output projection."""
    (W_Q, b_Q), (W_K, b_K), (W_V, b_V) = (
        split_heads(projection, projection.out_features // head_width) for projection in (q, k, v)
    )
    W_O, b_O = output_heads(o, len(W_Q))

    def project(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return to_heads(q(u), head_width), to_heads(k(u), head_width), to_heads(v(u), head_width)

    return {
        "W_Q": W_Q, "W_K": W_K, "W_V": W_V, "W_O": W_O, "b_Q": b_Q, "b_K": b_K, "b_V": b_V, "b_O": b_O, "project": project,
    }  # fmt: skip
