"""Softmax attention with scores that reduce to dot products, exactly, on torch's fused kernel.

    bilinear, cosine, relation   fold into q or k, without further columns
    metric, Mahalanobis, maps    the row constant cancels; the key bias -scale |k_j|^2 is a column (1 in q),
                                 or a mask row if it needs no gradient
    ALiBi, causal                -slope (i - j) equals slope j up to a row constant, which is a key bias
    sink                         one more key with k = 0 and v = 0, at the front

Columns are padded to a multiple of 16, the width at which the CPU kernel is fastest.
"""

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from rheoscope.attention.definition import Definition, query_key_positions, repeat_kv_heads
from rheoscope.attention.dot_form import DotForm
from rheoscope.attention.lower.lowering import NO_MESSAGE, LoweredCall, unless_compiling
from rheoscope.messages.message import Message

MASK_BACKENDS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""GPU kernels that accept a mask with empty rows. cuDNN averages such rows and gives NaN gradients elsewhere."""
ALIGNMENT_BYTES = 16
"""The alignment that GPU kernels need. In half precision they fail on unaligned rows or read them incorrectly."""
MAX_MASK_ENTRIES = 1 << 26
"""The largest boolean mask that is cheaper to build than to avoid (64 MiB)."""


def try_lower(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> LoweredCall | str:
    return mechanism_refusal(mechanism, q, k) or LoweredCall(explain_lowering(mechanism, q, k), run)


def not_softmax(mechanism: Definition) -> Message:
    return Message("the normaliser is {normaliser}, not softmax", normaliser=type(mechanism.normaliser).__name__)


def mechanism_refusal(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    if mechanism.normaliser.fused_softmax is None:
        return unless_compiling(lambda: not_softmax(mechanism))
    refusal = "" if mechanism.is_dot_product else score_refusal(mechanism, q, k)
    if not refusal and not mask_flag(mechanism, q, k) and q.shape[-2] * k.shape[-2] > MAX_MASK_ENTRIES:
        return unless_compiling(
            lambda: Message("the mask would be a table of {m} x {n} entries", m=q.shape[-2], n=k.shape[-2])
        )
    return refusal


def score_refusal(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    """Why the scores with their position are not a dot product, tested on one token of every head."""
    i, _ = query_key_positions(1, k.shape[-2], q.device)  # the last token, since a table of m < n rows lacks the first
    dot_form = single_pair_form(mechanism, q, k)
    if dot_form is None:
        return mechanism.score.no_dot_form_reason
    if dot_form.query_bias is not None and not mechanism.normaliser.is_shift_invariant:
        return unless_compiling(
            lambda: Message("a sink depends on the row constant of the score, which the dot product omits")
        )
    if mechanism.position.bias(i, i) is not None and not _is_key_bias(mechanism, i):
        return unless_compiling(lambda: Message("the position adds a bias to every pair"))
    return ""


def single_pair_form(mechanism: Definition, q: Tensor, k: Tensor) -> DotForm | None:
    return mechanism.score.dot_form(q[:1, :, :1], repeat_kv_heads(k[:1, :, :1], q.shape[1]))


def explain_lowering(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    """The reason for this lowering, from the form of the score and the sink."""
    if torch.compiler.is_compiling():  # Dynamo cannot trace a Message
        return NO_MESSAGE
    dot_form, fused = single_pair_form(mechanism, q, k), mechanism.normaliser.fused_softmax
    score = type(mechanism.score).__name__
    if dot_form is not None and dot_form.key_bias is not None:
        reason = Message(
            "the score {score} is a dot product plus a bias per key, which the fused kernel computes exactly",
            score=score,
        )
    elif mechanism.score.is_scaled_dot:
        reason = Message("the score {score} is a dot product, which the fused kernel computes exactly", score=score)
    else:
        reason = Message(
            "the score {score} is a dot product of mapped tokens, which the fused kernel computes exactly", score=score
        )
    has_sink = fused is not None and fused.sink is not None
    return Message("{reason}, with the sink as a zero key", reason=reason) if has_sink else reason


def run(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Fold the score, add the mask and the sink, and call the kernel."""
    dtype, causal = q.dtype, mask_flag(mechanism, q, k) == "causal"
    attn_mask = _mask_table(mechanism, q, k)
    dot_form, values = folded_inputs(mechanism, q, k, v)
    fused = mechanism.normaliser.fused_softmax
    assert fused is not None, "try_lower has checked the softmax"
    if fused.sink is None:
        return fused_attention(dot_form, values, attn_mask, causal, fused.dropout).to(dtype)
    dot_form, values, attn_mask = with_sink(dot_form, values, attn_mask, fused.sink, causal)
    out = fused_attention(dot_form, values, attn_mask, causal, fused.dropout)
    return (out[..., 1:, :] if causal else out).to(dtype)


def folded_inputs(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> tuple[DotForm, Tensor]:
    """Positioned tokens as a dot form, in float32 if anything is computed before the kernel."""
    fused = mechanism.normaliser.fused_softmax
    if not (
        mechanism.score.is_scaled_dot and mechanism.position.is_trivial and fused is not None and fused.sink is None
    ):
        compute_dtype = torch.promote_types(q.dtype, torch.float32)
        q, k, v = q.to(compute_dtype), k.to(compute_dtype), v.to(compute_dtype)
    if mechanism.position.is_trivial:
        return _dot_form(mechanism, q, k), mechanism.value(repeat_kv_heads(v, q.shape[1]))
    i, j = query_key_positions(q.shape[-2], k.shape[-2], q.device)
    dot_form, position_bias = (
        _dot_form(mechanism, mechanism.position.encode(q, i), mechanism.position.encode(k, j)),
        mechanism.position.key_bias(j),
    )
    if position_bias is not None:
        position_bias = position_bias.to(dot_form.k).expand(len(q), -1, -1)
        dot_form = dot_form._replace(
            key_bias=position_bias if dot_form.key_bias is None else dot_form.key_bias + position_bias
        )
    return dot_form, mechanism.value(repeat_kv_heads(v, q.shape[1]))


def _dot_form(mechanism: Definition, q: Tensor, k: Tensor) -> DotForm:
    dot_form = mechanism.score.dot_form(q, repeat_kv_heads(k, q.shape[1]))
    assert dot_form is not None, "try_lower has checked the dot form"
    return dot_form


def with_sink(
    dot_form: DotForm, v: Tensor, attn_mask: Tensor | None, sink: Tensor | float, causal: bool
) -> tuple[DotForm, Tensor, Tensor | None]:
    """Prepend a zero key and value. Causal attention also gets a query, so that the mask stays square."""
    sink_score = torch.as_tensor(sink, dtype=v.dtype, device=v.device).reshape(-1, 1).expand(*v.shape[:2], 1)
    bias = v.new_zeros(v.shape[:3]) if dot_form.key_bias is None else dot_form.key_bias
    is_zero_sink = dot_form.key_bias is None and not isinstance(sink, Tensor) and sink == 0
    dot_form = dot_form._replace(
        q=pad(dot_form.q, (0, 0, 1, 0)) if causal else dot_form.q,
        k=pad(dot_form.k, (0, 0, 1, 0)),
        key_bias=None if is_zero_sink else torch.cat([sink_score, bias], -1),
    )
    return dot_form, pad(v, (0, 0, 1, 0)), None if attn_mask is None else pad(attn_mask, (1, 0), value=True)


def fused_attention(
    dot_form: DotForm, v: Tensor, attn_mask: Tensor | None, causal: bool, dropout: float = 0.0
) -> Tensor:
    """One call of the fused kernel, with the key bias as a mask row or as a column."""
    q, k, scale, key_bias, width = dot_form.q, dot_form.k, dot_form.scale, dot_form.key_bias, v.shape[-1]
    if scale <= 0:  # the CPU kernel also scales its -inf: a scale of 0 gives NaN, a negative one +inf
        q, scale = q * scale, 1.0
    bias_fits_mask = (
        key_bias is not None and attn_mask is None and not (key_bias.requires_grad and torch.is_grad_enabled())
    )
    if key_bias is not None and bias_fits_mask and (not causal or _takes_mask_and_causal(q, k, v, dropout)):
        attn_mask, key_bias = key_bias[..., None, :], None
    if key_bias is not None:
        padding = q.new_zeros(-(q.shape[-1] + 1) % 16)
        ones_column = torch.cat([q.new_ones(1), padding])
        q = torch.cat([q, ones_column.expand(*q.shape[:-1], -1)], -1)
        k = torch.cat([k, key_bias[..., None] / scale, padding.expand(*k.shape[:-1], -1)], -1)
    if q.shape[-1] > width:
        v = pad(v, (0, q.shape[-1] - width))
    elif q.shape[-1] < width:
        q, k = pad(q, (0, width - q.shape[-1])), pad(k, (0, width - k.shape[-1]))
    if q.device.type != "cpu":
        q, k, v = align_rows(q), align_rows(k), align_rows(v)
    if causal and attn_mask is not None:
        out = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, True, attn_mask=attn_mask, scale=scale
        )[0]
    else:
        with sdpa_kernel(MASK_BACKENDS) if attn_mask is not None and q.is_cuda else nullcontext():
            out = scaled_dot_product_attention(
                q, k, v, attn_mask=attn_mask, dropout_p=dropout, is_causal=causal, scale=scale
            )
    return out[..., :width]


def align_rows(x: Tensor) -> Tensor:
    """Rows with the alignment that GPU kernels need. Unaligned rows are copied.

    >>> x = torch.zeros(2, 1, 4, 19)[..., :16]
    >>> align_rows(x).stride(), align_rows(x[..., :8]).stride()
    ((64, 64, 16, 1), (32, 32, 8, 1))
    """
    # reading the storage offset breaks a compiled graph; rows cut between heads start at a multiple of their strides
    storage_offset = () if torch.compiler.is_compiling() else (x.storage_offset(),)
    row_starts = (*x.stride()[:-1], *storage_offset)
    return (
        x
        if x.stride(-1) == 1 and not any(row_start * x.element_size() % ALIGNMENT_BYTES for row_start in row_starts)
        else x.contiguous()
    )


def _takes_mask_and_causal(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> bool:
    """Whether the CPU kernel runs: it accepts a mask with `is_causal`, unlike torch's public function, and saves a column."""
    is_dense_cpu = all(x.device.type == "cpu" and x.stride(-1) == 1 for x in (q, k, v))
    return is_dense_cpu and not dropout and q.dtype in (torch.float32, torch.float64)


def mask_flag(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    """\"none\", \"causal\" if queries and keys are the same tokens, or \"\" for a mask that needs a table."""
    mask, m, n = mechanism.mask, q.shape[-2], k.shape[-2]
    if mask.allows_all or (mask.is_causal and m == 1):
        return "none"
    return "causal" if mask.is_causal and m == n else ""


def _mask_table(mechanism: Definition, q: Tensor, k: Tensor) -> Tensor | None:
    if mask_flag(mechanism, q, k):
        return None
    allowed = mechanism.mask(*query_key_positions(q.shape[-2], k.shape[-2], q.device))
    return allowed.expand(*(1,) * (4 - allowed.ndim), *allowed.shape)


def _is_key_bias(mechanism: Definition, j: Tensor) -> bool:
    """Whether the position is a key bias: with a causal mask |i - j| = i - j, and softmax ignores the row constant."""
    ignores_row_constant = mechanism.mask.is_causal and mechanism.normaliser.is_shift_invariant
    return ignores_row_constant and mechanism.position.key_bias(j) is not None
