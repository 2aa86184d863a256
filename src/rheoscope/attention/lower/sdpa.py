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

from rheoscope.attention.definition import Definition, for_every_head, positions
from rheoscope.attention.dot_form import DotForm
from rheoscope.attention.lower.lowering import Offer

WITH_TABLE = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Kernels of a GPU that take a mask and know rows without a key: cuDNN's gives them a mean, and NaN gradients elsewhere."""
FETCHED = 16
"""Bytes that a GPU's kernels fetch at once: rows that do not begin at a multiple are read wrongly in half precision, or not at all."""
LARGEST_TABLE = 1 << 26
"""Entries of a boolean mask that is still cheaper to build than to avoid (64 MiB)."""


def offer(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Offer | str:
    return refuse(mechanism, q, k) or Offer(explain(mechanism, q, k), run)


def refuse(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    if mechanism.normaliser.fused is None:
        return f"its normaliser is {type(mechanism.normaliser).__name__}, not softmax"
    refusal = "" if mechanism.is_dot_product else refuse_score(mechanism, q, k)
    if not refusal and not flag(mechanism, q, k) and q.shape[-2] * k.shape[-2] > LARGEST_TABLE:
        return f"the mask would be a table of {q.shape[-2]} x {k.shape[-2]} entries"
    return refusal


def refuse_score(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    """Why scores with their position are no dot product, as one token of every head shows."""
    i, _ = positions(1, k.shape[-2], q.device)  # the last token: a table of m < n rows has no row for the first
    form = one_pair(mechanism, q, k)
    if form is None:
        return mechanism.score.why_no_dot
    if form.query_bias is not None and not mechanism.normaliser.shift_invariant:
        return "a sink feels the score's row constant, which the dot product drops"
    if mechanism.position.bias(i, i) is not None and not _bias_is_of_keys(mechanism, i):
        return "the position adds a bias of its own to every pair"
    return ""


def one_pair(mechanism: Definition, q: Tensor, k: Tensor) -> DotForm | None:
    return mechanism.score.dot(q[:1, :, :1], for_every_head(k[:1, :, :1], q.shape[1]))


def explain(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    form, fused = one_pair(mechanism, q, k), mechanism.normaliser.fused
    per_key = form is not None and form.key_bias is not None
    of_what = "" if mechanism.score.plain or per_key else " of mapped tokens"
    what = f"a dot product{of_what}{' with a bias per key' if per_key else ''}"
    why = f"the score {type(mechanism.score).__name__} is {what}, so the fused kernel computes it exactly"
    return f"{why}, the sink as a zero key" if fused is not None and fused.sink is not None else why


def run(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Fold, add what the mask and the sink ask for, and call the kernel."""
    dtype, causal = q.dtype, flag(mechanism, q, k) == "causal"
    table = _table(mechanism, q, k)
    form, values = fold(mechanism, q, k, v)
    fused = mechanism.normaliser.fused
    assert fused is not None, "offer() has seen a softmax"
    if fused.sink is None:
        return kernel(form, values, table, causal, fused.dropped).to(dtype)
    form, values, table = with_sink(form, values, table, fused.sink, causal)
    out = kernel(form, values, table, causal, fused.dropped)
    return (out[..., 1:, :] if causal else out).to(dtype)


def fold(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> tuple[DotForm, Tensor]:
    """Placed tokens as a dot product; in float32 unless nothing is computed before the kernel."""
    fused = mechanism.normaliser.fused
    if not (mechanism.score.plain and mechanism.position.nowhere and fused is not None and fused.sink is None):
        exact = torch.promote_types(q.dtype, torch.float32)
        q, k, v = q.to(exact), k.to(exact), v.to(exact)
    if mechanism.position.nowhere:
        return _dot(mechanism, q, k), mechanism.value(for_every_head(v, q.shape[1]))
    i, j = positions(q.shape[-2], k.shape[-2], q.device)
    form, slope = (
        _dot(mechanism, mechanism.position.place(q, i), mechanism.position.place(k, j)),
        mechanism.position.key_bias(j),
    )
    if slope is not None:
        slope = slope.to(form.k).expand(len(q), -1, -1)
        form = form._replace(key_bias=slope if form.key_bias is None else form.key_bias + slope)
    return form, mechanism.value(for_every_head(v, q.shape[1]))


def _dot(mechanism: Definition, q: Tensor, k: Tensor) -> DotForm:
    form = mechanism.score.dot(q, for_every_head(k, q.shape[1]))
    assert form is not None, "offer() has seen a dot form"
    return form


def with_sink(
    form: DotForm, v: Tensor, table: Tensor | None, sink: Tensor | float, causal: bool
) -> tuple[DotForm, Tensor, Tensor | None]:
    """A key and value of zeros in front; causal attention gets a query in front too, so that it stays square."""
    height = torch.as_tensor(sink, dtype=v.dtype, device=v.device).reshape(-1, 1).expand(*v.shape[:2], 1)
    bias = v.new_zeros(v.shape[:3]) if form.key_bias is None else form.key_bias
    zero = form.key_bias is None and not isinstance(sink, Tensor) and sink == 0
    form = form._replace(
        q=pad(form.q, (0, 0, 1, 0)) if causal else form.q,
        k=pad(form.k, (0, 0, 1, 0)),
        key_bias=None if zero else torch.cat([height, bias], -1),
    )
    return form, pad(v, (0, 0, 1, 0)), None if table is None else pad(table, (1, 0), value=True)


def kernel(form: DotForm, v: Tensor, table: Tensor | None, causal: bool, dropped: float = 0.0) -> Tensor:
    """One call of the fused kernel; the key bias travels as a mask row or as a column."""
    q, k, scale, bias, width = form.q, form.k, form.scale, form.key_bias, v.shape[-1]
    if scale <= 0:  # the CPU kernel scales its -inf too: 0 would give NaN, a negative scale +inf
        q, scale = q * scale, 1.0
    row = bias is not None and table is None and not (bias.requires_grad and torch.is_grad_enabled())
    if bias is not None and row and (not causal or _takes_row_and_causal(q, k, v, dropped)):
        table, bias = bias[..., None, :], None
    if bias is not None:
        spare = q.new_zeros(-(q.shape[-1] + 1) % 16)
        one = torch.cat([q.new_ones(1), spare])
        q = torch.cat([q, one.expand(*q.shape[:-1], -1)], -1)
        k = torch.cat([k, bias[..., None] / scale, spare.expand(*k.shape[:-1], -1)], -1)
    if q.shape[-1] > width:
        v = pad(v, (0, q.shape[-1] - width))
    elif q.shape[-1] < width:
        q, k = pad(q, (0, width - q.shape[-1])), pad(k, (0, width - k.shape[-1]))
    if q.device.type != "cpu":
        q, k, v = aligned(q), aligned(k), aligned(v)
    if causal and table is not None:
        out = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, True, attn_mask=table, scale=scale
        )[0]
    else:
        with sdpa_kernel(WITH_TABLE) if table is not None and q.is_cuda else nullcontext():
            out = scaled_dot_product_attention(
                q, k, v, attn_mask=table, dropout_p=dropped, is_causal=causal, scale=scale
            )
    return out[..., :width]


def aligned(x: Tensor) -> Tensor:
    """Rows that begin where a GPU's kernels expect them; others are copied, such as those read together with a gate of three heads.

    >>> x = torch.zeros(2, 1, 4, 19)[..., :16]
    >>> aligned(x).stride(), aligned(x[..., :8]).stride()
    ((64, 64, 16, 1), (32, 32, 8, 1))
    """
    # a compiled graph breaks where it is asked at which place rows begin; cut between heads, they begin at a multiple of their strides
    first = () if torch.compiler.is_compiling() else (x.storage_offset(),)
    begins = (*x.stride()[:-1], *first)
    return x if x.stride(-1) == 1 and not any(one * x.element_size() % FETCHED for one in begins) else x.contiguous()


def _takes_row_and_causal(q: Tensor, k: Tensor, v: Tensor, dropped: float) -> bool:
    """The CPU kernel takes a mask beside `is_causal`, which torch's own door to it forbids: no column, a quarter less work."""
    dense = all(x.device.type == "cpu" and x.stride(-1) == 1 for x in (q, k, v))
    return dense and not dropped and q.dtype in (torch.float32, torch.float64)


def flag(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    """The masks that the kernel knows by name: none, or causal where queries and keys are the same tokens."""
    mask, m, n = mechanism.mask, q.shape[-2], k.shape[-2]
    if mask.forbids_nothing or (mask.is_causal and m == 1):
        return "none"
    return "causal" if mask.is_causal and m == n else ""


def _table(mechanism: Definition, q: Tensor, k: Tensor) -> Tensor | None:
    if flag(mechanism, q, k):
        return None
    permitted = mechanism.mask(*positions(q.shape[-2], k.shape[-2], q.device))
    return permitted.expand(*(1,) * (4 - permitted.ndim), *permitted.shape)


def _bias_is_of_keys(mechanism: Definition, j: Tensor) -> bool:
    """Where no key lies ahead and softmax is blind to a row constant (ALiBi: |i - j| = i - j)."""
    blind = mechanism.mask.is_causal and mechanism.normaliser.shift_invariant
    return blind and mechanism.position.key_bias(j) is not None
