"""Penalties that training adds to the loss: one function for each. `PENALTIES` lists them.

    asymmetry             mean over heads of ‖M − Mᵀ‖² / ‖M‖²: 0 if queries and keys are tied, about 2 if they are independent
    residual              mean over layers and tokens of ‖T(x) − x‖² / ‖x‖²: 0 if every layer leaves its cloud in place
    residual_attention    the same for the attention of every layer alone
    residual_ffn          the same for the FFN of every layer alone
    residual_first        the same for the first layer alone
    residual_last         the same for the last layer alone

loss + λ · penalty with λ from 0 to ∞ interpolates from a free model to a tied one, or to one whose cloud is a fixed point. A
penalty takes a model and its clouds on a batch: the embedded tokens and the points after every half-layer. It returns one number
per packed model, so weights may be (models, out, in). The clouds come from the forward pass of the loss, so a penalty costs no
pass of its own.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.models.own_attention import OwnAttention
from rheoscope.models.transformer import Block, Translator
from rheoscope.shapes import RheoscopeError
from rheoscope.space.safe_arithmetic import at_least_float32

Clouds = Sequence[Float[Tensor, "b n d"]]
PerModel = Float[Tensor, " models"]


def asymmetry(model: nn.Module, clouds: Clouds = ()) -> PerModel:
    """The asymmetry of M, averaged over all self-attention heads. Computed from r×r factors, never from d×d.

    **Formula** With M = A Bᵀ, A = C D_g W_Q and B = C D_g W_K: ‖M − Mᵀ‖²/‖M‖² = 2 − 2 tr(CC)/tr(AᵀA BᵀB), C = BᵀA. Rotations are
    left out (offset 0).

    **Laws** Equals 2 (1 − s) with s the `symmetry` of `rs.operators`. 0 for tied heads. Between 0 and 4.

    >>> from rheoscope.models.config import Config
    >>> from rheoscope.models.transformer import build
    >>> asymmetry(build(Config(vocabulary=9, width=8, depth=1, heads=2, projection="tied"))).round(decimals=5).tolist()
    [0.0]
    """
    return torch.stack(
        [per_head_asymmetry(*query_key_maps(module)) for module in model.modules() if isinstance(module, Block)]
    ).mean((0, -1))


def query_key_maps(block: Block) -> tuple[Float[Tensor, "m h d k"], Float[Tensor, "m h d k"]]:
    """The maps from x̂ to queries and keys, with the gain and the centring of the norm, and a key map for every head."""
    attention, norm = block.attention, block.norm_attention
    q, k, _ = attention.projection.maps(attention.read.weight)
    sides = [q, k.repeat_interleave(q.shape[1] // k.shape[1], 1)]
    gain = getattr(norm, "weight", None)
    if block.is_pre_norm and gain is not None:
        sides = [side * gain.reshape(-1, 1, side.shape[-2], 1) for side in sides]
    if block.is_pre_norm and block.centred:
        sides = [side - side.mean(-2, keepdim=True) for side in sides]
    return sides[0], sides[1]


def per_head_asymmetry(A: Float[Tensor, "*h d k"], B: Float[Tensor, "*h d k"]) -> Float[Tensor, "*h"]:
    """‖M − Mᵀ‖²/‖M‖² of M = A Bᵀ, and 0 if M is 0."""
    with torch.autocast(A.device.type, enabled=False):
        A, B = at_least_float32(A), at_least_float32(B)
        C = B.mT @ A
        squared_norm = ((A.mT @ A) * (B.mT @ B)).sum((-2, -1))
        trace_CC = (C * C.mT).sum((-2, -1))
        return (
            2 - 2 * torch.where(squared_norm > 0, trace_CC / torch.where(squared_norm > 0, squared_norm, 1), 1)
        ).clamp(min=0)


def residual(model: nn.Module, clouds: Clouds) -> PerModel:
    """The relative displacement ‖T(x) − x‖²/‖x‖², averaged over layers and tokens.

    It is relative, as in `rs.fixed_point`: a stream that shrinks as a whole is no closer to a fixed point.

    >>> from rheoscope.models.config import Config
    >>> from rheoscope.models.transformer import build
    >>> model, clouds = build(Config(vocabulary=9, width=8, depth=2, heads=2)), []
    >>> _ = model(torch.tensor([[1, 2, 3]]), hidden_states=clouds)
    >>> len(clouds), residual(model, clouds).shape
    (5, torch.Size([1]))
    """
    return mean_displacement(model, pairwise(clouds[::2]))


def residual_attention(model: nn.Module, clouds: Clouds) -> PerModel:
    """The relative displacement by attention, averaged over layers and tokens."""
    return mean_displacement(model, zip(clouds[:-1:2], clouds[1::2], strict=True))


def residual_ffn(model: nn.Module, clouds: Clouds) -> PerModel:
    """The relative displacement by the FFN, averaged over layers and tokens."""
    return mean_displacement(model, zip(clouds[1::2], clouds[2::2], strict=True))


def residual_first(model: nn.Module, clouds: Clouds) -> PerModel:
    """The relative displacement by the first layer, averaged over tokens."""
    return mean_displacement(model, [(clouds[0], clouds[2])])


def residual_last(model: nn.Module, clouds: Clouds) -> PerModel:
    """The relative displacement by the last layer, averaged over tokens."""
    return mean_displacement(model, [(clouds[-3], clouds[-1])])


def mean_displacement(model: nn.Module, steps: Iterable[tuple[Tensor, Tensor]]) -> PerModel:
    """‖after − before‖²/‖before‖², averaged over steps (before, after) and tokens, for every packed model."""
    displacements = [
        (after - before).square().sum(-1) / before.square().sum(-1)
        for before, after in ((at_least_float32(before), at_least_float32(after)) for before, after in steps)
    ]
    return torch.stack(displacements).unflatten(1, (n_models(model), -1)).mean((0, 2, 3))


def n_models(model: nn.Module) -> int:
    """The number of models that are packed into one."""
    attention = next(module for module in model.modules() if isinstance(module, Block)).attention
    if isinstance(attention, OwnAttention):
        return 1
    weight = attention.read.weight
    return 1 if weight.ndim == 2 else len(weight)


NEEDS_HIDDEN_STATES: dict[str, Callable[[nn.Module, Clouds], PerModel]] = {
    "residual": residual,
    "residual_attention": residual_attention,
    "residual_ffn": residual_ffn,
    "residual_first": residual_first,
    "residual_last": residual_last,
}
"""The penalties that read clouds. The others read only weights."""
PENALTIES: dict[str, Callable[[nn.Module, Clouds], PerModel]] = {"asymmetry": asymmetry, **NEEDS_HIDDEN_STATES}
"""Every penalty by name."""


def weighted_penalty(strengths: Mapping[str, float], model: nn.Module, clouds: Clouds = ()) -> PerModel:
    """Σ λ · penalty over the named penalties, at least one."""
    return torch.stack([strength * PENALTIES[name](model, clouds) for name, strength in strengths.items()]).sum(0)


class PenaltyTerm(nn.Module):
    """The penalties of one forward pass, times a factor that warm-up changes: one number per packed model.

    None if no penalty is named or the model is in eval mode.
    """

    ramp: Tensor

    def __init__(self, model: nn.Module, strengths: Mapping[str, float]) -> None:
        super().__init__()
        if isinstance(model, Translator) and NEEDS_HIDDEN_STATES.keys() & strengths.keys():
            raise RheoscopeError(
                Message("the residual penalty needs a single stack of layers, got an encoder-decoder"),
                Advice("penalty={'asymmetry': 0.1}", "--penalty asymmetry=0.1"),
            )
        self.model, self.strengths = model, dict(strengths)
        self.register_buffer("ramp", torch.ones((), device=next(model.parameters()).device), persistent=False)

    def hidden_states(self) -> list[Tensor] | None:
        """An empty list for the forward pass to fill, or None if no penalty reads clouds."""
        return [] if self.model.training and NEEDS_HIDDEN_STATES.keys() & self.strengths.keys() else None

    def forward(self, clouds: list[Tensor] | None) -> PerModel | None:
        return (
            self.ramp * weighted_penalty(self.strengths, self.model, clouds or ())
            if self.strengths and self.model.training
            else None
        )
