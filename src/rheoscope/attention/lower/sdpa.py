"""Softmax attention of any score that is a dot product in disguise, on torch's fused kernel, exactly.

    bilinear, cosine, relation   fold into q or k: nothing is added
    metric, Mahalanobis, maps    the row constant cancels; the key bias -scale |k_j|^2 is one more column (q gets a 1),
                                 or a mask row where no gradient has to pass through it
    ALiBi, causal                -slope (i - j) is slope j up to a row constant: a key bias too
    sink                         one more key with k = 0, v = 0, at the front

Columns are padded to a multiple of 16, the width that the CPU kernel runs fastest.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from rheoscope.attention.feature import Identity
from rheoscope.attention.lower.offer import Offer
from rheoscope.attention.mask import Causal
from rheoscope.attention.mechanism import Mechanism, for_every_head, positions
from rheoscope.attention.normaliser.dropped import Dropped
from rheoscope.attention.normaliser.sink import Sink
from rheoscope.attention.normaliser.softmax import Softmax
from rheoscope.attention.position import ALiBi
from rheoscope.attention.score import DotForm, Gram

LARGEST_TABLE = 1 << 26
"""Entries of a boolean mask that is still cheaper to build than to avoid (64 MiB)."""


def offer(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> Offer | str:
    refusal = refuse(mechanism, q, k)
    return refusal or Offer(explain(mechanism), lambda q, k, v: run(mechanism, q, k, v))


def refuse(mechanism: Mechanism, q: Tensor, k: Tensor) -> str:
    if not isinstance(mechanism.normaliser, Softmax | Sink):
        return f"its normaliser is {type(mechanism.normaliser).__name__}, not softmax"
    refusal = "" if mechanism.is_dot_product else refuse_score(mechanism, q, k)
    if not refusal and not _flag(mechanism, q, k) and q.shape[-2] * k.shape[-2] > LARGEST_TABLE:
        return f"the mask would be a table of {q.shape[-2]} x {k.shape[-2]} entries"
    return refusal


def refuse_score(mechanism: Mechanism, q: Tensor, k: Tensor) -> str:
    """Why scores with their position are no dot product, as one token of every head shows."""
    i, _ = positions(1, k.shape[-2], q.device)  # the last token: a table of m < n rows has no row for the first
    form = mechanism.score.dot(q[:1, :, :1], for_every_head(k[:1, :, :1], q.shape[1]))
    if form is None:
        return f"the score {type(mechanism.score).__name__} is no dot product in disguise"
    if form.query_bias is not None and not mechanism.normaliser.shift_invariant:
        return "a sink feels the score's row constant, which the dot product drops"
    if mechanism.position.bias(i, i) is not None and not _alibi_is_key_bias(mechanism):
        return "the position adds a bias of its own to every pair"
    return ""


def explain(mechanism: Mechanism) -> str:
    name = type(mechanism.score).__name__
    what = {
        "Gram": "a dot product",
        "Relation": "a dot product of mapped tokens",
        "Distance": "a dot product with a bias per key",
    }
    why = f"the score {name} is {what.get(name, 'a dot product')}, so the fused kernel computes it exactly"
    return f"{why}, the sink as a zero key" if isinstance(mechanism.normaliser, Sink) else why


def run(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Fold, add what the mask and the sink ask for, and call the kernel."""
    dtype, causal = q.dtype, _flag(mechanism, q, k) == "causal"
    table = _table(mechanism, q, k)
    form, values = fold(mechanism, q, k, v)
    if isinstance(mechanism.normaliser, Sink):
        form, values, table = with_sink(form, values, table, mechanism.normaliser, causal)
        out = kernel(form, values, table, causal)
        return (out[..., 1:, :] if causal else out).to(dtype)
    share = mechanism.normaliser.share if isinstance(mechanism.normaliser, Dropped) else 0.0
    return kernel(form, values, table, causal, share).to(dtype)


def fold(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> tuple[DotForm, Tensor]:
    """Placed tokens as a dot product; in float32 unless nothing is computed before the kernel."""
    untouched = isinstance(mechanism.score, Gram) and isinstance(mechanism.score.phi, Identity)
    if not (untouched and mechanism.position.nowhere and isinstance(mechanism.normaliser, Softmax)):
        exact = torch.promote_types(q.dtype, torch.float32)
        q, k, v = q.to(exact), k.to(exact), v.to(exact)
    if not mechanism.position.nowhere:
        i, j = positions(q.shape[-2], k.shape[-2], q.device)
        q, k = mechanism.position.place(q, i), mechanism.position.place(k, j)
    form = mechanism.score.dot(q, for_every_head(k, q.shape[1]))
    assert form is not None, "offer() has seen a dot form"
    if isinstance(mechanism.position, ALiBi):
        slope = (mechanism.position.slopes[:, None] * j).to(form.k).expand(len(q), -1, -1)
        form = form._replace(key_bias=slope if form.key_bias is None else form.key_bias + slope)
    return form, mechanism.value(for_every_head(v, q.shape[1]))


def with_sink(
    form: DotForm, v: Tensor, table: Tensor | None, sink: Sink, causal: bool
) -> tuple[DotForm, Tensor, Tensor | None]:
    """A key and value of zeros in front; causal attention gets a query in front too, so that it stays square."""
    height = torch.as_tensor(sink.sink, dtype=v.dtype, device=v.device).reshape(-1, 1).expand(*v.shape[:2], 1)
    bias = v.new_zeros(v.shape[:3]) if form.key_bias is None else form.key_bias
    zero = form.key_bias is None and not isinstance(sink.sink, Tensor) and sink.sink == 0
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
    if bias is not None and not causal and table is None and not (bias.requires_grad and torch.is_grad_enabled()):
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
    out = scaled_dot_product_attention(q, k, v, attn_mask=table, dropout_p=dropped, is_causal=causal, scale=scale)
    return out[..., :width]


def _flag(mechanism: Mechanism, q: Tensor, k: Tensor) -> str:
    """The masks that the kernel knows by name: none, or causal where queries and keys are the same tokens."""
    mask, m, n = mechanism.mask, q.shape[-2], k.shape[-2]
    if mask.forbids_nothing or (type(mask) is Causal and m == 1):
        return "none"
    return "causal" if type(mask) is Causal and m == n else ""


def _table(mechanism: Mechanism, q: Tensor, k: Tensor) -> Tensor | None:
    if _flag(mechanism, q, k):
        return None
    permitted = mechanism.mask(*positions(q.shape[-2], k.shape[-2], q.device))
    return permitted.expand(*(1,) * (4 - permitted.ndim), *permitted.shape)


def _alibi_is_key_bias(mechanism: Mechanism) -> bool:
    """Where no key lies ahead, |i - j| = i - j, and the part in i is a row constant."""
    return (
        isinstance(mechanism.position, ALiBi)
        and type(mechanism.mask) is Causal
        and mechanism.normaliser.shift_invariant
    )
