"""Softmax attention with scores that reduce to dot products, on cuDNN's fused kernel in half precision.

The folds are those of `sdpa.py`, computed in float32 and rounded once to the dtype of the inputs. The kernel accumulates
in float32.

    bilinear, cosine, relation   mapped rows, without further columns
    metric, Mahalanobis, ALiBi   the key bias in three columns of the keys, with three constant columns of the queries
    sink                         after the kernel, from its log-sum-exp: o sigmoid(lse - sink)

The gradient of a sink needs no extra pass. The kernel's backward pass takes weights as exp(score - lse) and its outputs
as given. With the log-sum-exp and the outputs that include the sink, its gradients therefore include the sink too.
The kernel gets no mask: with one, its backward pass gives NaN for some lengths (cuDNN 9.19, N mod 128 = 64).
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.definition import Definition, query_key_positions, repeat_kv_heads
from rheoscope.attention.dot_form import DotMaps
from rheoscope.attention.feature_maps import Feature
from rheoscope.attention.lower import sdpa
from rheoscope.attention.lower.kernel_rows import pack_rows, pad_columns
from rheoscope.attention.lower.lowering import NO_MESSAGE, LoweredCall, unless_compiling
from rheoscope.attention.lower.row_layout import RowLayout
from rheoscope.attention.position import Position
from rheoscope.messages.message import Message, join

HALF_DTYPES = (torch.bfloat16, torch.float16)
MAX_WIDTH = 128
"""The width of queries, keys and values above which other kernels are as fast."""
MIN_TOKENS = 64
"""The number of queries or keys below which the kernel's tiles are mostly empty."""


def try_lower(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> LoweredCall | str:
    return (
        input_refusal(q, k)
        or mechanism_refusal(mechanism, q, k, v)
        or LoweredCall(explain_lowering(mechanism, q, k), run)
    )


def input_refusal(q: Tensor, k: Tensor) -> str:
    if q.device.type != "cuda" or q.dtype not in HALF_DTYPES:
        return unless_compiling(
            lambda: Message(
                "cuDNN's kernel needs half precision on a GPU, got {dtype} on {device}",
                dtype=dtype_name(q.dtype),
                device=q.device.type,
            )
        )
    # torch.backends.cuda.cudnn_sdp_enabled is the same function under a name that breaks a compiled graph
    if torch.cuda.get_device_capability(q.device) < (9, 0) or not torch._C._get_cudnn_sdp_enabled():
        return unless_compiling(
            lambda: Message("cuDNN's kernel is disabled, or slow on this GPU (it needs Hopper or later)")
        )
    if min(q.shape[-2], k.shape[-2]) < MIN_TOKENS:
        return unless_compiling(
            lambda: Message(
                "cuDNN's tiles need at least {low} queries and keys, got {m} and {n}",
                low=MIN_TOKENS,
                m=q.shape[-2],
                n=k.shape[-2],
            )
        )
    return ""


def mechanism_refusal(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> str:
    """Why the mechanism does not fold, on any device."""
    if not sdpa.mask_flag(mechanism, q, k):
        return unless_compiling(
            lambda: Message(
                "cuDNN's kernel runs with the causal mask or none; its gradients with a mask table are unreliable"
            )
        )
    refusal = sdpa.mechanism_refusal(mechanism, q, k)
    fold = mechanism.score.dot_maps(k.shape[-1])
    if refusal or fold is None or fold.scale <= 0:
        return refusal or unless_compiling(
            lambda: Message("the score is not a product of mapped tokens with a positive scale")
        )
    if fold.norm_coefficient and not (fold.phi.is_linear and fold.psi.is_linear):
        return unless_compiling(rounding_refusal)
    key_layout, value_width = (
        row_layout(fold, has_key_bias(mechanism, k), is_key=True),
        mechanism.value.output_width(v.shape[-1]),
    )
    if max(key_layout.width(fold.psi.output_width(k.shape[-1])), value_width) > MAX_WIDTH:
        return unless_compiling(lambda: Message("queries, keys or values are wider than {width}", width=MAX_WIDTH))
    return ""


def explain_lowering(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    """The reason for this lowering, from the form of the score, the key bias and the sink."""
    if torch.compiler.is_compiling():  # Dynamo cannot trace a Message
        return NO_MESSAGE
    fold, fused = mechanism.score.dot_maps(k.shape[-1]), mechanism.normaliser.fused_softmax
    assert fold is not None, "mechanism_refusal has checked the fold"
    names = {"score": type(mechanism.score).__name__, "dtype": dtype_name(q.dtype)}
    if fold.phi.is_identity and fold.psi.is_identity:
        parts = [Message("the score {score} is a dot product, which cuDNN's fused kernel computes in {dtype}", **names)]
    else:
        parts = [
            Message(
                "the score {score} is a dot product of mapped tokens, which cuDNN's fused kernel computes in {dtype}",
                **names,
            )
        ]
    if row_layout(fold, has_key_bias(mechanism, k), is_key=True).bias_groups:
        parts.append(Message("the bias per key takes three columns"))
    if fused is not None and fused.sink is not None:
        parts.append(Message("the sink is added from the log-sum-exp"))
    return join("; ", tuple(parts))


def rounding_refusal() -> Message:
    return Message("rounding mapped tokens would change large distances by more than the error of the kernel")


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype.

    >>> dtype_name(torch.bfloat16)
    'bfloat16'
    """
    return str(dtype).removeprefix("torch.")


def row_layout(fold: DotMaps, has_bias: bool, is_key: bool) -> RowLayout:
    return RowLayout(
        (fold.psi if is_key else fold.phi).is_unit_norm,
        int(has_bias or bool(fold.norm_coefficient)),
        is_key,
        fold.norm_coefficient,
        fold.scale,
    )


def has_key_bias(mechanism: Definition, k: Tensor) -> bool:
    """Whether the position has a bias per key, tested on the last key."""
    return mechanism.position.key_bias(query_key_positions(1, k.shape[-2], k.device)[0]) is not None


def run(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Fold, round and call the kernel."""
    fold, fused = mechanism.score.dot_maps(k.shape[-1]), mechanism.normaliser.fused_softmax
    assert fold is not None, "try_lower has checked the fold"
    assert fused is not None, "try_lower has checked the softmax"
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
    """The score of the sink in float32 on the device. A number is filled in there, which needs no synchronisation."""
    return sink.to(device, torch.float32) if isinstance(sink, Tensor) else torch.full((1,), sink, device=device)


def folded_rows(mechanism: Definition, fold: DotMaps, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of queries and keys whose scaled dot product is the score up to a row constant."""
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
    """Outputs, log-sum-exp (b, h, m, 1) if requested or needed for a gradient, and the state for the backward pass."""
    with_lse = with_lse or (torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)))
    q, k, v = (sdpa.align_rows(x) for x in (q, k, v))
    outputs: tuple[Tensor, ...] = torch.ops.aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, with_lse, dropout, causal, scale=scale
    )
    return outputs[:8]


def cudnn_attention_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, saved: tuple[Tensor, ...], causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v for weights exp(scale q.k - lse); `out` and `lse` are taken as given."""
    out, lse, cum_q, cum_k, max_q, max_k, seed, offset = saved
    g, q, k, v = (sdpa.align_rows(x) for x in (g, q, k, v))
    gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        g, q, k, v, out, lse, seed, offset, None, cum_q, cum_k, max_q, max_k, 0.0, causal, scale=scale
    )
    return gradients


def _apply_map(phi: Feature, x: Tensor) -> Tensor:
    """The mapped tokens; `pack_rows` normalises and rounds them."""
    return x if phi.is_unit_norm else phi.map_in_float32(x)


def position_and_map(position: Position, phi: Feature, x: Tensor, token_positions: Tensor) -> Tensor:
    """Tokens positioned in float32, then mapped."""
    if not position.changes_tokens:
        return _apply_map(phi, x)
    positioned_x = position.encode(x.float(), token_positions)
    return positioned_x if phi.is_unit_norm else phi(positioned_x)


def apply_sink(out: Tensor, lse: Float[Tensor, "b h m 1"], sink: Tensor) -> Float[Tensor, "b h m 1"]:
    """The log-sum-exp that includes the sink. The outputs are rescaled in place."""
    if out.is_cuda:
        from rheoscope.attention.lower.kernels.sink import add_sink

        return add_sink(out, lse, sink)
    lse_with_sink = torch.logaddexp(lse, sink.reshape(-1, 1, 1))
    out.mul_((lse - lse_with_sink).exp())
    return lse_with_sink


class _SinkAttention(torch.autograd.Function):
    """Attention with one more key, of score `sink` and value 0."""

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
