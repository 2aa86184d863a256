"""Softmax attention of any score that is a dot product in disguise, on cuDNN's fused kernel in half precision.

What is folded is what `sdpa` folds; here it is done in float32, rounded once to the precision of the inputs, and the kernel
sums in float32:

    bilinear, cosine, relation   mapped rows: nothing is added
    metric, Mahalanobis, ALiBi   the key bias as three columns of keys, against three of queries that are constant
    sink                         after the kernel, by its log-sum-exp: o sigmoid(lse - sink)

The gradient of a sink needs no pass of its own: the kernel's backward takes weights to be exp(score - lse) and its outputs
as they are, so given the sum with the sink in it, and the outputs with the sink in them, it is that of the whole.
No mask is given to the kernel: with one, its backward gives NaN for some lengths (cuDNN 9.19, N mod 128 = 64).
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.definition import Definition, for_every_head, positions
from rheoscope.attention.dot_form import Fold
from rheoscope.attention.feature_maps import Feature
from rheoscope.attention.lower import sdpa
from rheoscope.attention.lower.kernel_rows import Made, rows, widened
from rheoscope.attention.lower.lowering import Offer
from rheoscope.attention.position import Position

HALF = (torch.bfloat16, torch.float16)
WIDEST = 128
"""Columns of queries, keys and values beyond which other kernels are as fast."""
FEWEST = 64
"""Queries and keys below which a tile of the kernel is mostly empty."""


def offer(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Offer | str:
    return refuse_inputs(q, k) or refuse(mechanism, q, k, v) or Offer(explain(mechanism, q, k), run)


def refuse_inputs(q: Tensor, k: Tensor) -> str:
    if q.device.type != "cuda" or q.dtype not in HALF:
        return f"cuDNN's kernel takes half precision on a GPU, these are {str(q.dtype).removeprefix('torch.')} on {q.device.type}"
    # torch.backends.cuda.cudnn_sdp_enabled is this by another name, at which a compiled graph breaks
    if torch.cuda.get_device_capability(q.device) < (9, 0) or not torch._C._get_cudnn_sdp_enabled():
        return "cuDNN's kernel is not there or slower on this GPU (Hopper or later is wanted)"
    if min(q.shape[-2], k.shape[-2]) < FEWEST:
        return f"{q.shape[-2]} queries and {k.shape[-2]} keys are too few for cuDNN's tiles"
    return ""


def refuse(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> str:
    """Why the mechanism does not fold, wherever the tensors are."""
    if not sdpa.flag(mechanism, q, k):
        return "cuDNN's kernel is given no mask but the causal one: with a table its backward is not to be trusted"
    refusal = sdpa.refuse(mechanism, q, k)
    fold = mechanism.score.fold(k.shape[-1])
    if refusal or fold is None or fold.scale <= 0:
        return refusal or "the score is no product of mapped tokens with a positive scale"
    if fold.square and not (fold.phi.linear and fold.psi.linear):
        return "tokens that are mapped and rounded would move large distances by more than the kernel's own error"
    key, value = made(fold, biased(mechanism, k), keys=True), mechanism.value.width(v.shape[-1])
    if max(key.width(fold.psi.width(k.shape[-1])), value) > WIDEST:
        return f"queries, keys or values are wider than {WIDEST}"
    return ""


def explain(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    fold, fused = mechanism.score.fold(k.shape[-1]), mechanism.normaliser.fused
    assert fold is not None, "refuse() has seen a fold"
    per_key = bool(made(fold, biased(mechanism, k), keys=True).columns)
    mapped = "" if fold.phi.identity and fold.psi.identity else " of mapped tokens"
    kind = str(q.dtype).removeprefix("torch.")
    why = f"the score {type(mechanism.score).__name__} is a dot product{mapped}, so cuDNN's fused kernel computes it in {kind}"
    why += ", the bias per key in three columns" * per_key
    return why + ", the sink from its log-sum-exp" * (fused is not None and fused.sink is not None)


def made(fold: Fold, biased: bool, keys: bool) -> Made:
    return Made((fold.psi if keys else fold.phi).unit, int(biased or bool(fold.square)), keys, fold.square, fold.scale)


def biased(mechanism: Definition, k: Tensor) -> bool:
    """Whether the position has a number for each key, as the last one shows."""
    return mechanism.position.key_bias(positions(1, k.shape[-2], k.device)[0]) is not None


def run(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Fold, round, call the kernel."""
    fold, fused = mechanism.score.fold(k.shape[-1]), mechanism.normaliser.fused
    assert fold is not None, "offer() has seen a fold"
    assert fused is not None, "offer() has seen a softmax"
    causal = sdpa.flag(mechanism, q, k) == "causal"
    k, v = for_every_head(k, q.shape[1]), for_every_head(v, q.shape[1])
    queries, keys = folded(mechanism, fold, q, k)
    values = mechanism.value.rounded(v)
    width, values = values.shape[-1], widened(values, 8)
    if fused.sink is None:
        out = kernel(queries, keys, values, causal, fold.scale, fused.dropped)[0]
    else:
        out = _Sunk.apply(queries, keys, values, height(fused.sink, q.device), causal, fold.scale)
    return out if out.shape[-1] == width else out[..., :width]


def height(sink: Tensor | float, device: torch.device) -> Tensor:
    """The score of the sink in float32 on the device; a number is filled in there, for nothing waits for a fill."""
    return sink.to(device, torch.float32) if isinstance(sink, Tensor) else torch.full((1,), sink, device=device)


def folded(mechanism: Definition, fold: Fold, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of queries and keys whose dot product, times the scale, is the score up to a constant of the row."""
    position = mechanism.position
    if position.nowhere:
        bias, a, b = None, _mapped(fold.phi, q), _mapped(fold.psi, k)
    else:
        i, j = positions(q.shape[-2], k.shape[-2], q.device)
        bias, a, b = (
            position.key_bias(j),
            *(placed(position, f, x, at) for f, x, at in ((fold.phi, q, i), (fold.psi, k, j))),
        )
    of_queries, of_keys = (made(fold, bias is not None, keys) for keys in (False, True))
    return rows(a, None, of_queries, q.dtype), rows(b, bias, of_keys, k.dtype)


def kernel(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, dropped: float = 0.0, lse: bool = False
) -> tuple[Tensor, ...]:
    """Outputs, log-sum-exp (b, h, m, 1) where it is wanted or a gradient will want it, and what `backward` asks for."""
    lse = lse or (torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)))
    q, k, v = (sdpa.aligned(x) for x in (q, k, v))
    found: tuple[Tensor, ...] = torch.ops.aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, lse, dropped, causal, scale=scale
    )
    return found[:8]


def backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, found: tuple[Tensor, ...], causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v for weights exp(scale q.k - lse), from what `kernel` gave; it trusts `out` and `lse`."""
    out, lse, cum_q, cum_k, max_q, max_k, seed, offset = found
    g, q, k, v = (sdpa.aligned(x) for x in (g, q, k, v))
    gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        g, q, k, v, out, lse, seed, offset, None, cum_q, cum_k, max_q, max_k, 0.0, causal, scale=scale
    )
    return gradients


def _mapped(phi: Feature, x: Tensor) -> Tensor:
    """Mapped; taking lengths away and rounding is left to `rows`."""
    return x if phi.unit else phi.rounded(x)


def placed(position: Position, phi: Feature, x: Tensor, at: Tensor) -> Tensor:
    """Placed in float32, then mapped."""
    if not position.moves:
        return _mapped(phi, x)
    placed = position.place(x.float(), at)
    return placed if phi.unit else phi(placed)


def sunk(out: Tensor, lse: Float[Tensor, "b h m 1"], sink: Tensor) -> Float[Tensor, "b h m 1"]:
    """The log-sum-exp with the sink in it; outputs are scaled in place to what they are with it."""
    if out.is_cuda:
        from rheoscope.attention.lower.kernels.sink import scale

        return scale(out, lse, sink)
    total = torch.logaddexp(lse, sink.reshape(-1, 1, 1))
    out.mul_((lse - total).exp())
    return total


class _Sunk(torch.autograd.Function):
    """Attention with one further key of score `sink` and value 0."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sink: Tensor, causal: bool, scale: float) -> Tensor:
        out, lse, *ctx.rest = kernel(q, k, v, causal, scale, lse=True)
        total = sunk(out, lse, sink)
        ctx.causal, ctx.scale = causal, scale
        ctx.save_for_backward(q, k, v, out, total, sink)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, total, sink = ctx.saved_tensors
        found = backward(g, q, k, v, (out, total, *ctx.rest), ctx.causal, ctx.scale)
        if not ctx.needs_input_grad[3]:
            return *found, None, None, None
        mean = (g.float() * out).sum(-1, keepdim=True)
        to_sink = -((sink.reshape(-1, 1, 1) - total).exp() * mean).sum((0, 2, 3))
        return *found, to_sink.sum_to_size(sink.shape), None, None
