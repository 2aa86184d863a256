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

from rheoscope.attention.definition import Definition, query_key_positions, repeat_kv_heads
from rheoscope.attention.dot_form import DotMaps
from rheoscope.attention.feature_maps import Feature
from rheoscope.attention.lower import sdpa
from rheoscope.attention.lower.kernel_rows import RowLayout, pack_rows, pad_columns
from rheoscope.attention.lower.lowering import LoweredCall
from rheoscope.attention.position import Position

HALF_DTYPES = (torch.bfloat16, torch.float16)
MAX_WIDTH = 128
"""Columns of queries, keys and values beyond which other kernels are as fast."""
MIN_TOKENS = 64
"""Queries and keys below which a tile of the kernel is mostly empty."""


def try_lower(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> LoweredCall | str:
    return (
        input_refusal(q, k)
        or mechanism_refusal(mechanism, q, k, v)
        or LoweredCall(explain_lowering(mechanism, q, k), run)
    )


def input_refusal(q: Tensor, k: Tensor) -> str:
    if q.device.type != "cuda" or q.dtype not in HALF_DTYPES:
        return f"cuDNN's kernel takes half precision on a GPU, these are {str(q.dtype).removeprefix('torch.')} on {q.device.type}"
    # torch.backends.cuda.cudnn_sdp_enabled is this by another name, at which a compiled graph breaks
    if torch.cuda.get_device_capability(q.device) < (9, 0) or not torch._C._get_cudnn_sdp_enabled():
        return "cuDNN's kernel is not there or slower on this GPU (Hopper or later is wanted)"
    if min(q.shape[-2], k.shape[-2]) < MIN_TOKENS:
        return f"{q.shape[-2]} queries and {k.shape[-2]} keys are too few for cuDNN's tiles"
    return ""


def mechanism_refusal(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> str:
    """Why the mechanism does not fold, wherever the tensors are."""
    if not sdpa.mask_flag(mechanism, q, k):
        return "cuDNN's kernel is given no mask but the causal one: with a table its backward is not to be trusted"
    refusal = sdpa.mechanism_refusal(mechanism, q, k)
    fold = mechanism.score.dot_maps(k.shape[-1])
    if refusal or fold is None or fold.scale <= 0:
        return refusal or "the score is no product of mapped tokens with a positive scale"
    if fold.norm_coefficient and not (fold.phi.is_linear and fold.psi.is_linear):
        return "tokens that are mapped and rounded would move large distances by more than the kernel's own error"
    key_layout, value_width = (
        row_layout(fold, has_key_bias(mechanism, k), is_key=True),
        mechanism.value.output_width(v.shape[-1]),
    )
    if max(key_layout.width(fold.psi.output_width(k.shape[-1])), value_width) > MAX_WIDTH:
        return f"queries, keys or values are wider than {MAX_WIDTH}"
    return ""


def explain_lowering(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    fold, fused = mechanism.score.dot_maps(k.shape[-1]), mechanism.normaliser.fused_softmax
    assert fold is not None, "refuse() has seen a fold"
    with_key_bias = bool(row_layout(fold, has_key_bias(mechanism, k), is_key=True).bias_groups)
    of_mapped = "" if fold.phi.is_identity and fold.psi.is_identity else " of mapped tokens"
    dtype_name = str(q.dtype).removeprefix("torch.")
    reason = f"the score {type(mechanism.score).__name__} is a dot product{of_mapped}, so cuDNN's fused kernel computes it in {dtype_name}"
    reason += ", the bias per key in three columns" * with_key_bias
    return reason + ", the sink from its log-sum-exp" * (fused is not None and fused.sink is not None)


def row_layout(fold: DotMaps, has_bias: bool, is_key: bool) -> RowLayout:
    return RowLayout(
        (fold.psi if is_key else fold.phi).is_unit_norm,
        int(has_bias or bool(fold.norm_coefficient)),
        is_key,
        fold.norm_coefficient,
        fold.scale,
    )


def has_key_bias(mechanism: Definition, k: Tensor) -> bool:
    """Whether the position has a number for each key, as the last one shows."""
    return mechanism.position.key_bias(query_key_positions(1, k.shape[-2], k.device)[0]) is not None


def run(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Fold, round, call the kernel."""
    fold, fused = mechanism.score.dot_maps(k.shape[-1]), mechanism.normaliser.fused_softmax
    assert fold is not None, "offer() has seen a fold"
    assert fused is not None, "offer() has seen a softmax"
    causal = sdpa.mask_flag(mechanism, q, k) == "causal"
    k, v = repeat_kv_heads(k, q.shape[1]), repeat_kv_heads(v, q.shape[1])
    queries, keys = folded_rows(mechanism, fold, q, k)
    values = mechanism.value.map_in_float32(v)
    width, values = values.shape[-1], pad_columns(values, 8)
    if fused.sink is None:
        out = cudnn_attention(queries, keys, values, causal, fold.scale, fused.dropout)[0]
    else:
        out = _SinkAttention.apply(queries, keys, values, sink_score(fused.sink, q.device), causal, fold.scale)
    return out if out.shape[-1] == width else out[..., :width]


def sink_score(sink: Tensor | float, device: torch.device) -> Tensor:
    """The score of the sink in float32 on the device; a number is filled in there, for nothing waits for a fill."""
    return sink.to(device, torch.float32) if isinstance(sink, Tensor) else torch.full((1,), sink, device=device)


def folded_rows(mechanism: Definition, fold: DotMaps, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of queries and keys whose dot product, times the scale, is the score up to a constant of the row."""
    position = mechanism.position
    if position.is_trivial:
        bias, query_rows, key_rows = None, _apply_map(fold.phi, q), _apply_map(fold.psi, k)
    else:
        i, j = query_key_positions(q.shape[-2], k.shape[-2], q.device)
        bias, query_rows, key_rows = (
            position.key_bias(j),
            *(
                position_and_map(position, phi, x, token_positions)
                for phi, x, token_positions in ((fold.phi, q, i), (fold.psi, k, j))
            ),
        )
    query_layout, key_layout = (row_layout(fold, bias is not None, is_key) for is_key in (False, True))
    return pack_rows(query_rows, None, query_layout, q.dtype), pack_rows(key_rows, bias, key_layout, k.dtype)


def cudnn_attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, dropout: float = 0.0, with_lse: bool = False
) -> tuple[Tensor, ...]:
    """Outputs, log-sum-exp (b, h, m, 1) where it is wanted or a gradient will want it, and what `backward` asks for."""
    with_lse = with_lse or (torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)))
    q, k, v = (sdpa.align_rows(x) for x in (q, k, v))
    outputs: tuple[Tensor, ...] = torch.ops.aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, with_lse, dropout, causal, scale=scale
    )
    return outputs[:8]


def cudnn_attention_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, saved: tuple[Tensor, ...], causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v for weights exp(scale q.k - lse), from what `kernel` gave; it trusts `out` and `lse`."""
    out, lse, cum_q, cum_k, max_q, max_k, seed, offset = saved
    g, q, k, v = (sdpa.align_rows(x) for x in (g, q, k, v))
    gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        g, q, k, v, out, lse, seed, offset, None, cum_q, cum_k, max_q, max_k, 0.0, causal, scale=scale
    )
    return gradients


def _apply_map(phi: Feature, x: Tensor) -> Tensor:
    """Mapped; taking lengths away and rounding is left to `rows`."""
    return x if phi.is_unit_norm else phi.map_in_float32(x)


def position_and_map(position: Position, phi: Feature, x: Tensor, token_positions: Tensor) -> Tensor:
    """Placed in float32, then mapped."""
    if not position.changes_tokens:
        return _apply_map(phi, x)
    positioned_x = position.encode(x.float(), token_positions)
    return positioned_x if phi.is_unit_norm else phi(positioned_x)


def apply_sink(out: Tensor, lse: Float[Tensor, "b h m 1"], sink: Tensor) -> Float[Tensor, "b h m 1"]:
    """The log-sum-exp with the sink in it; outputs are scaled in place to what they are with it."""
    if out.is_cuda:
        from rheoscope.attention.lower.kernels.sink import add_sink

        return add_sink(out, lse, sink)
    lse_with_sink = torch.logaddexp(lse, sink.reshape(-1, 1, 1))
    out.mul_((lse - lse_with_sink).exp())
    return lse_with_sink


class _SinkAttention(torch.autograd.Function):
    """Attention with one further key of score `sink` and value 0."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sink: Tensor, causal: bool, scale: float) -> Tensor:
        out, lse, *ctx.extra_outputs = cudnn_attention(q, k, v, causal, scale, with_lse=True)
        lse_with_sink = apply_sink(out, lse, sink)
        ctx.causal, ctx.scale = causal, scale
        ctx.save_for_backward(q, k, v, out, lse_with_sink, sink)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse_with_sink, sink = ctx.saved_tensors
        gradients = cudnn_attention_backward(
            g, q, k, v, (out, lse_with_sink, *ctx.extra_outputs), ctx.causal, ctx.scale
        )
        if not ctx.needs_input_grad[3]:
            return *gradients, None, None, None
        delta = (g.float() * out).sum(-1, keepdim=True)
        grad_sink = -((sink.reshape(-1, 1, 1) - lse_with_sink).exp() * delta).sum((0, 2, 3))
        return *gradients, grad_sink.sum_to_size(sink.shape), None, None
