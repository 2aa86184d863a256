"""Attention to near and far keys, merged by their log-sum-exp; far keys run as causal attention on cuDNN's kernel.

A query i sees the far keys j <= i - reach. Between the queries from `reach` on and the keys without the last `reach`, this
is the causal mask. With sums N and F of near and far weights, out = (1 - s) near + s far, s = sigmoid(ln F + far_bias - ln N).

The backward kernel takes weights as exp(score - lse) and its outputs as given. With the log-sum-exp and the outputs of all
keys, it therefore gives the gradients of the far part. The gradients of the near part follow from the formula above.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from rheoscope.attention.lower import cudnn


def join_near_and_far(
    near_out: Float[Tensor, "b h n e"],
    near_lse: Float[Tensor, "b h n"],
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    far_bias: Float[Tensor, "h"],
    scale: float,
    reach: int,
) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "b h n"]]:
    """Outputs and log-sum-exp over all keys, from those of the near keys and the rows of all tokens.

    `far_bias` of its head is added to every far score.
    """
    out, lse = _JoinNearAndFar.apply(near_out, near_lse, q, k, v, far_bias, scale, reach)
    return out, lse


class _JoinNearAndFar(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        near_out: Tensor,
        near_lse: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        far_bias: Tensor,
        scale: float,
        reach: int,
    ) -> tuple[Tensor, Tensor]:
        far_inputs = q[:, :, reach:], k[:, :, :-reach], v[:, :, :-reach]
        far_out, far_lse, *ctx.extra_outputs = causal_attention(*far_inputs, scale)
        near_out = near_out if near_out.stride(-1) == 1 else near_out.contiguous()
        out, lse, far_fraction = mix_near_and_far(near_out, near_lse, far_out, far_lse[..., 0], far_bias, reach)
        ctx.scale, ctx.reach = scale, reach
        ctx.save_for_backward(*far_inputs, near_out, out, lse, far_fraction, far_bias)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, near_out, out, lse, far_fraction, far_bias = ctx.saved_tensors
        reach, g = ctx.reach, g if g.stride(-1) == 1 else g.contiguous()
        grad_near, grad_far_lse = mix_backward(g, near_out, out, far_fraction)
        joint_result = out[:, :, reach:].contiguous(), (lse[:, :, reach:] - far_bias[:, None])[..., None].contiguous()
        dq, dk, dv = causal_attention_backward(
            g[:, :, reach:].contiguous(), q, k, v, (*joint_result, *ctx.extra_outputs), ctx.scale
        )
        grad_inputs = pad(dq, (0, 0, reach, 0)), pad(dk, (0, 0, 0, reach)), pad(dv, (0, 0, 0, reach))
        return (
            grad_near,
            -grad_far_lse,
            *grad_inputs,
            grad_far_lse.sum((0, 2)) if ctx.needs_input_grad[5] else None,
            None,
            None,
        )


def mix_near_and_far(
    near_out: Tensor, near_lse: Tensor, far_out: Tensor, far_lse: Tensor, far_bias: Tensor, reach: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs, the log-sum-exp and the fraction of weight on far keys, for every row. The first rows have no far key."""
    if near_out.is_cuda:
        from rheoscope.attention.lower.kernels import merge

        return merge.mix_near_and_far(near_out, near_lse, far_out, far_lse, far_bias, reach)
    shifted_far_lse = pad(far_lse + far_bias[:, None], (reach, 0), value=-torch.inf)
    far_fraction = torch.sigmoid(shifted_far_lse - near_lse)
    out = near_out + (pad(far_out, (0, 0, reach, 0)) - near_out) * far_fraction[..., None]
    return out.to(near_out.dtype), torch.logaddexp(shifted_far_lse, near_lse), far_fraction


def mix_backward(g: Tensor, near_out: Tensor, out: Tensor, far_fraction: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the near outputs and of the log-sum-exp of the far keys."""
    if near_out.is_cuda:
        from rheoscope.attention.lower.kernels import merge

        return merge.mix_backward(g, near_out, out, far_fraction)
    return (g * (1 - far_fraction[..., None])).to(g.dtype), (g * (out - near_out)).sum(-1) * (1 - far_fraction)


def causal_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, ...]:
    """Causal outputs and log-sum-exp (b, h, n, 1), from cuDNN's kernel or, on a CPU, in float64."""
    if q.is_cuda:
        return cudnn.cudnn_attention(q, k, v, True, scale, with_lse=True)
    s = _causal_scores(q, k, scale)
    return (s.softmax(-1) @ v.double()).to(v.dtype), s.logsumexp(-1, keepdim=True).float()


def causal_attention_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, saved: tuple[Tensor, ...], scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v for weights exp(score - lse), with the outputs and the log-sum-exp as given."""
    if q.is_cuda:
        return cudnn.cudnn_attention_backward(g, q, k, v, saved, True, scale)
    out, lse = saved
    weights, grad_out = (_causal_scores(q, k, scale) - lse.double()).exp(), g.double()
    grad_scores = scale * weights * (grad_out @ v.double().mT - (grad_out * out.double()).sum(-1, keepdim=True))
    dq, dk, dv = grad_scores @ k.double(), grad_scores.mT @ q.double(), weights.mT @ grad_out
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def _causal_scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    n = q.shape[-2]
    is_future = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
    return (scale * q.double() @ k.double().mT).masked_fill(is_future, -torch.inf)
