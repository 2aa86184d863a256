"""Attention in two parts, near keys and far ones, joined by their sums; far keys run on cuDNN's kernel as causal attention of their own.

A query i sees the far keys j <= i - reach: of queries from `reach` on, and of keys without the last `reach`, that is the causal
mask again. With sums N and F of near and far weights, out = (1 - s) near + s far, s = sigmoid(ln F + shift - ln N).

Backward, a kernel takes weights to be exp(score - lse) and its outputs as they are: given the sum and the outputs of the whole, its
gradients of the far part are those of the whole. The near part is given what the formula above says.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from rheoscope.attention.lower import cudnn


def joined(
    near: Float[Tensor, "b h n e"],
    within: Float[Tensor, "b h n"],
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    shift: Float[Tensor, "h"],
    scale: float,
    reach: int,
) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "b h n"]]:
    """Outputs and log-sum-exp of all keys, from those of near ones (`near`, `within`) and from rows of all tokens.

    To every far score `shift` of its head is added.
    """
    out, total = _Joined.apply(near, within, q, k, v, shift, scale, reach)
    return out, total


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        near: Tensor,
        within: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        shift: Tensor,
        scale: float,
        reach: int,
    ) -> tuple[Tensor, Tensor]:
        far = q[:, :, reach:], k[:, :, :-reach], v[:, :, :-reach]
        found, lse, *ctx.rest = attend(*far, scale)
        near = near if near.stride(-1) == 1 else near.contiguous()
        out, total, share = mix(near, within, found, lse[..., 0], shift, reach)
        ctx.scale, ctx.reach = scale, reach
        ctx.save_for_backward(*far, near, out, total, share, shift)
        ctx.mark_non_differentiable(total)
        return out, total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, near, out, total, share, shift = ctx.saved_tensors
        reach, g = ctx.reach, g if g.stride(-1) == 1 else g.contiguous()
        to_near, there = give_back(g, near, out, share)
        whole = out[:, :, reach:].contiguous(), (total[:, :, reach:] - shift[:, None])[..., None].contiguous()
        dq, dk, dv = pull(g[:, :, reach:].contiguous(), q, k, v, (*whole, *ctx.rest), ctx.scale)
        rows = pad(dq, (0, 0, reach, 0)), pad(dk, (0, 0, 0, reach)), pad(dv, (0, 0, 0, reach))
        return to_near, -there, *rows, there.sum((0, 2)) if ctx.needs_input_grad[5] else None, None, None


def mix(
    near: Tensor, within: Tensor, far: Tensor, lse: Tensor, shift: Tensor, reach: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, log-sum-exp and the share of far keys, of every row; the first rows have none."""
    if near.is_cuda:
        from rheoscope.attention.lower.kernels import merge

        return merge.mix(near, within, far, lse, shift, reach)
    beyond = pad(lse + shift[:, None], (reach, 0), value=-torch.inf)
    share = torch.sigmoid(beyond - within)
    out = near + (pad(far, (0, 0, reach, 0)) - near) * share[..., None]
    return out.to(near.dtype), torch.logaddexp(beyond, within), share


def give_back(g: Tensor, near: Tensor, out: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """What the outputs of near keys are given, and what the logarithm of the far sum is."""
    if near.is_cuda:
        from rheoscope.attention.lower.kernels import merge

        return merge.give_back(g, near, out, share)
    return (g * (1 - share[..., None])).to(g.dtype), (g * (out - near)).sum(-1) * (1 - share)


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, ...]:
    """Causal outputs and log-sum-exp (b, h, n, 1); cuDNN's kernel, or what it computes."""
    if q.is_cuda:
        return cudnn.kernel(q, k, v, True, scale, lse=True)
    s = _scores(q, k, scale)
    return (s.softmax(-1) @ v.double()).to(v.dtype), s.logsumexp(-1, keepdim=True).float()


def pull(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, found: tuple[Tensor, ...], scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v for weights exp(score - lse), from the outputs and the log-sum-exp that are given."""
    if q.is_cuda:
        return cudnn.backward(g, q, k, v, found, True, scale)
    out, lse = found
    p, w = (_scores(q, k, scale) - lse.double()).exp(), g.double()
    s = scale * p * (w @ v.double().mT - (w * out.double()).sum(-1, keepdim=True))
    dq, dk, dv = s @ k.double(), s.mT @ q.double(), p.mT @ w
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def _scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    n = q.shape[-2]
    after = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
    return (scale * q.double() @ k.double().mT).masked_fill(after, -torch.inf)
