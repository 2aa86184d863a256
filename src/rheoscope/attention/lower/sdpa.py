"""Softmax attention of any score that is a dot product in disguise, on torch's fused kernel, exactly.

    bilinear, cosine, relation   fold into q or k: nothing is added
    metric, Mahalanobis, maps    the row constant cancels; the key bias -scale |k_j|^2 is one more column (q gets a 1),
                                 or a mask row where no gradient has to pass through it
    ALiBi, causal                -slope (i - j) is slope j up to a row constant: a key bias too
    sink                         one more key with k = 0, v = 0, at the front

Columns are padded to a multiple of 16, the width that the CPU kernel runs fastest.
"""

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from rheoscope.attention.definition import Definition, query_key_positions, repeat_kv_heads
from rheoscope.attention.dot_form import DotForm
from rheoscope.attention.lower.lowering import LoweredCall

MASK_BACKENDS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Kernels of a GPU that take a mask and know rows without a key: cuDNN's gives them a mean, and NaN gradients elsewhere."""
ALIGNMENT_BYTES = 16
"""Bytes that a GPU's kernels fetch at once: rows that do not begin at a multiple are read wrongly in half precision, or not at all."""
MAX_MASK_ENTRIES = 1 << 26
"""Entries of a boolean mask that is still cheaper to build than to avoid (64 MiB)."""


def try_lower(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> LoweredCall | str:
    return mechanism_refusal(mechanism, q, k) or LoweredCall(explain_lowering(mechanism, q, k), run)


def mechanism_refusal(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    if mechanism.normaliser.fused_softmax is None:
        return f"its normaliser is {type(mechanism.normaliser).__name__}, not softmax"
    refusal = "" if mechanism.is_dot_product else score_refusal(mechanism, q, k)
    if not refusal and not mask_flag(mechanism, q, k) and q.shape[-2] * k.shape[-2] > MAX_MASK_ENTRIES:
        return f"the mask would be a table of {q.shape[-2]} x {k.shape[-2]} entries"
    return refusal


def score_refusal(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    """Why scores with their position are no dot product, as one token of every head shows."""
    i, _ = query_key_positions(
        1, k.shape[-2], q.device
    )  # the last token: a table of m < n rows has no row for the first
    dot_form = single_pair_form(mechanism, q, k)
    if dot_form is None:
        return mechanism.score.no_dot_form_reason
    if dot_form.query_bias is not None and not mechanism.normaliser.is_shift_invariant:
        return "a sink feels the score's row constant, which the dot product drops"
    if mechanism.position.bias(i, i) is not None and not _is_key_bias(mechanism, i):
        return "the position adds a bias of its own to every pair"
    return ""


def single_pair_form(mechanism: Definition, q: Tensor, k: Tensor) -> DotForm | None:
    return mechanism.score.dot_form(q[:1, :, :1], repeat_kv_heads(k[:1, :, :1], q.shape[1]))


def explain_lowering(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    dot_form, fused = single_pair_form(mechanism, q, k), mechanism.normaliser.fused_softmax
    with_key_bias = dot_form is not None and dot_form.key_bias is not None
    of_mapped = "" if mechanism.score.is_scaled_dot or with_key_bias else " of mapped tokens"
    score_kind = f"a dot product{of_mapped}{' with a bias per key' if with_key_bias else ''}"
    reason = f"the score {type(mechanism.score).__name__} is {score_kind}, so the fused kernel computes it exactly"
    return f"{reason}, the sink as a zero key" if fused is not None and fused.sink is not None else reason


def run(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Fold, add what the mask and the sink ask for, and call the kernel."""
    dtype, causal = q.dtype, mask_flag(mechanism, q, k) == "causal"
    attn_mask = _mask_table(mechanism, q, k)
    dot_form, values = folded_inputs(mechanism, q, k, v)
    fused = mechanism.normaliser.fused_softmax
    assert fused is not None, "offer() has seen a softmax"
    if fused.sink is None:
        return fused_attention(dot_form, values, attn_mask, causal, fused.dropout).to(dtype)
    dot_form, values, attn_mask = with_sink(dot_form, values, attn_mask, fused.sink, causal)
    out = fused_attention(dot_form, values, attn_mask, causal, fused.dropout)
    return (out[..., 1:, :] if causal else out).to(dtype)


def folded_inputs(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> tuple[DotForm, Tensor]:
    """Placed tokens as a dot product; in float32 unless nothing is computed before the kernel."""
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
    assert dot_form is not None, "offer() has seen a dot form"
    return dot_form


def with_sink(
    dot_form: DotForm, v: Tensor, attn_mask: Tensor | None, sink: Tensor | float, causal: bool
) -> tuple[DotForm, Tensor, Tensor | None]:
    """A key and value of zeros in front; causal attention gets a query in front too, so that it stays square."""
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
    """One call of the fused kernel; the key bias travels as a mask row or as a column."""
    q, k, scale, key_bias, width = dot_form.q, dot_form.k, dot_form.scale, dot_form.key_bias, v.shape[-1]
    if scale <= 0:  # the CPU kernel scales its -inf too: 0 would give NaN, a negative scale +inf
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
    """Rows that begin where a GPU's kernels expect them; others are copied, such as those read together with a gate of three heads.

    >>> x = torch.zeros(2, 1, 4, 19)[..., :16]
    >>> align_rows(x).stride(), align_rows(x[..., :8]).stride()
    ((64, 64, 16, 1), (32, 32, 8, 1))
    """
    # a compiled graph breaks where it is asked at which place rows begin; cut between heads, they begin at a multiple of their strides
    storage_offset = () if torch.compiler.is_compiling() else (x.storage_offset(),)
    row_starts = (*x.stride()[:-1], *storage_offset)
    return (
        x
        if x.stride(-1) == 1 and not any(row_start * x.element_size() % ALIGNMENT_BYTES for row_start in row_starts)
        else x.contiguous()
    )


def _takes_mask_and_causal(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> bool:
    """The CPU kernel takes a mask beside `is_causal`, which torch's own door to it forbids: no column, a quarter less work."""
    is_dense_cpu = all(x.device.type == "cpu" and x.stride(-1) == 1 for x in (q, k, v))
    return is_dense_cpu and not dropout and q.dtype in (torch.float32, torch.float64)


def mask_flag(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    """The masks that the kernel knows by name: none, or causal where queries and keys are the same tokens."""
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
    """Where no key lies ahead and softmax is blind to a row constant (ALiBi: |i - j| = i - j)."""
    ignores_row_constant = mechanism.mask.is_causal and mechanism.normaliser.is_shift_invariant
    return ignores_row_constant and mechanism.position.key_bias(j) is not None
