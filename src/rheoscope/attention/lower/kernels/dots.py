"""A mechanism's scores as kernels read them: scale q.k + query bias + key bias, in the input's own precision.

Whatever is done to tokens before their product (a position, a map) is done in float32 and rounded once; biases stay in
float32, where they are added. Widths are filled with zeros up to a power of two.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from rheoscope.attention.definition import Definition, for_every_head, positions

WIDEST = 128
"""The widest rows that the kernels hold in registers."""
HEADS = 65535
"""The most heads of all texts in one launch."""
FARTHEST = 1 << 31
"""Numbers between the first row of a head and the end of its last, as far as kernels count."""
DEVICE = "cuda"
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Dots(NamedTuple):
    """q (b, h, m, d), k (b, h, n, d) and what makes them scores; a bias of None stands for 0."""

    q: Tensor
    k: Tensor
    scale: float
    query_bias: Float[Tensor, "b h m"] | None
    key_bias: Float[Tensor, "b h n"] | None


def refuse_tensors(q: Tensor, k: Tensor) -> str:
    """Why no kernel reads these tensors; nothing where one may."""
    if q.device.type != DEVICE:
        return f"kernels run on a CUDA device, the tensors are on the {q.device.type}"
    if q.dtype not in DTYPES or k.dtype != q.dtype:
        return f"kernels read bfloat16, float16 or float32, the tensors are {str(q.dtype).removeprefix('torch.')}"
    heads = q.shape[0] * q.shape[1]
    if not q.shape[-2] or not k.shape[-2] or heads > HEADS:
        return f"kernels take 1 to {HEADS} heads of all texts and at least one query and key, got {heads} heads"
    return ""


def refuse_mask(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    if mechanism.mask.forbids_nothing or (mechanism.mask.is_causal and q.shape[-2] <= k.shape[-2]):
        return ""
    return "kernels know no mask and the causal one with at least as many keys as queries; the mask is another"


def refuse_dots(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    """Why the scores with their position are no dot product that a kernel can read, as one token of every head shows."""
    form = mechanism.score.dot(q[:1, :, :1], for_every_head(k[:1, :, :1], q.shape[1]))
    if form is None:
        return mechanism.score.why_no_dot
    if form.q.shape[-1] > WIDEST:
        return f"kernels hold rows of up to {WIDEST} numbers, these have {form.q.shape[-1]}"
    i, _ = positions(1, k.shape[-2], q.device)  # the last token: a table of m < n rows has no row for the first
    if mechanism.position.bias(i, i) is None:
        return ""
    blind = mechanism.mask.is_causal and mechanism.normaliser.shift_invariant
    if blind and mechanism.position.key_bias(i) is not None:
        return ""
    return "the position adds a bias of its own to every pair"


def dots(mechanism: Definition, q: Tensor, k: Tensor) -> Dots:
    """Placed and mapped tokens; the query bias only where the normaliser feels it."""
    k, slope = for_every_head(k, q.shape[1]), None
    at_q, at_k = q, k
    if not (mechanism.score.plain and mechanism.position.nowhere):
        i, j = positions(q.shape[-2], k.shape[-2], q.device)
        at_q, at_k = mechanism.position.place(q.float(), i), mechanism.position.place(k.float(), j)
        slope = mechanism.position.key_bias(j)
    form = mechanism.score.dot(at_q, at_k)
    assert form is not None, "offer() has seen a dot form"
    blind = mechanism.normaliser.shift_invariant
    query_bias = None if form.query_bias is None or blind else form.query_bias().float().contiguous()
    key_bias = None if form.key_bias is None else form.key_bias.float().contiguous()
    if slope is not None:
        slope = slope.float().expand(*q.shape[:2], -1)
        key_bias = slope.contiguous() if key_bias is None else key_bias + slope
    return Dots(filled(form.q.to(q.dtype)), filled(form.k.to(q.dtype)), form.scale, query_bias, key_bias)


def values(mechanism: Definition, v: Tensor, heads: int) -> tuple[Tensor, int]:
    """g(v) for every head, computed in float32 and rounded once, and how wide it is without its filling."""
    v = for_every_head(v, heads)
    v = v if mechanism.value.identity else mechanism.value(v.float()).to(v.dtype)
    return filled(v), v.shape[-1]


def filled(x: Tensor) -> Tensor:
    """Rows filled with zeros to a power of two of at least 16 numbers, which lie side by side."""
    width = max(16, 1 << (x.shape[-1] - 1).bit_length())
    if width != x.shape[-1]:
        return pad(x, (0, width - x.shape[-1]))
    near = x.stride(-1) == 1 and x.shape[-2] * x.stride(-2) < FARTHEST
    return x if near else x.contiguous()
