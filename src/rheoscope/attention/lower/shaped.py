"""Shaped attention as a sum of three that are faster: o = alpha v_i + beta attention_i - gamma (mean of permitted v)."""

from dataclasses import replace

import torch
from torch import Tensor

from rheoscope.attention.lower.offer import Offer
from rheoscope.attention.mask import Causal
from rheoscope.attention.mechanism import Mechanism, for_every_head
from rheoscope.attention.normaliser.shaped import Shaped
from rheoscope.attention.normaliser.softmax import Softmax


def offer(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> Offer | str:
    if not isinstance(mechanism.normaliser, Shaped):
        return f"its normaliser is {type(mechanism.normaliser).__name__}, not alpha I + beta A - gamma C"
    if not mechanism.mask.sees_itself:
        return "the mask may forbid a token to itself, which the identity part would miss"
    why = "a sum of the values, softmax attention and a mean, each on its own fastest lowering"
    return Offer(why, lambda q, k, v: run(mechanism, q, k, v))


def run(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    part = mechanism.normaliser
    assert isinstance(part, Shaped)
    attention = replace(mechanism, normaliser=Softmax())
    values = mechanism.value(for_every_head(v, q.shape[1]))
    return part.alpha * values + part.beta * attention.attend(q, k, v) - part.gamma * mean(mechanism, q, k, v)


def mean(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The mean of the permitted values: the attention of zero logits, by running sums where the mask is a prefix."""
    values, mask = mechanism.value(for_every_head(v, q.shape[1])), mechanism.mask
    if mask.forbids_nothing:
        return values.mean(-2, keepdim=True)
    if type(mask) is Causal:
        exact = torch.promote_types(v.dtype, torch.float32)
        count = torch.arange(1, v.shape[-2] + 1, device=v.device)[:, None]
        return (values.cumsum(-2, dtype=exact) / count).to(v.dtype)
    return Mechanism(mask=mask, value=mechanism.value).attend(torch.zeros_like(q), k, v)
