"""A mechanism's scores as kernels read them: scale q.k + query bias + key bias, in the input's own precision.

Whatever is done to tokens before their product (a position, a map) is done in float32 and rounded once; biases stay in
float32, where they are added. Widths are filled with zeros up to a power of two.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from rheoscope.attention.definition import Definition, query_key_positions, repeat_kv_heads

MAX_WIDTH = 128
"""The widest rows that the kernels hold in registers."""
MAX_HEADS = 65535
"""The most heads of all texts in one launch."""
MAX_HEAD_SPAN = 1 << 31
"""Numbers between the first row of a head and the end of its last, as far as kernels count."""
KERNEL_DEVICE = "cuda"
KERNEL_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class DotInputs(NamedTuple):
    """q (b, h, m, d), k (b, h, n, d) and what makes them scores; a bias of None stands for 0."""

    q: Tensor
    k: Tensor
    scale: float
    query_bias: Float[Tensor, "b h m"] | None
    key_bias: Float[Tensor, "b h n"] | None


def tensor_refusal(q: Tensor, k: Tensor) -> str:
    """Why no kernel reads these tensors; nothing where one may."""
    if q.device.type != KERNEL_DEVICE:
        return f"kernels run on a CUDA device, the tensors are on the {q.device.type}"
    if q.dtype not in KERNEL_DTYPES or k.dtype != q.dtype:
        return f"kernels read bfloat16, float16 or float32, the tensors are {str(q.dtype).removeprefix('torch.')}"
    n_heads = q.shape[0] * q.shape[1]
    if not q.shape[-2] or not k.shape[-2] or n_heads > MAX_HEADS:
        return f"kernels take 1 to {MAX_HEADS} heads of all texts and at least one query and key, got {n_heads} heads"
    return ""


def mask_refusal(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    if mechanism.mask.allows_all or (mechanism.mask.is_causal and q.shape[-2] <= k.shape[-2]):
        return ""
    return "kernels know no mask and the causal one with at least as many keys as queries; the mask is another"


def dot_refusal(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    """Why the scores with their position are no dot product that a kernel can read, as one token of every head shows."""
    dot_form = mechanism.score.dot_form(q[:1, :, :1], repeat_kv_heads(k[:1, :, :1], q.shape[1]))
    if dot_form is None:
        return mechanism.score.no_dot_form_reason
    if dot_form.q.shape[-1] > MAX_WIDTH:
        return f"kernels hold rows of up to {MAX_WIDTH} numbers, these have {dot_form.q.shape[-1]}"
    i, _ = query_key_positions(
        1, k.shape[-2], q.device
    )  # the last token: a table of m < n rows has no row for the first
    if mechanism.position.bias(i, i) is None:
        return ""
    ignores_row_constant = mechanism.mask.is_causal and mechanism.normaliser.is_shift_invariant
    if ignores_row_constant and mechanism.position.key_bias(i) is not None:
        return ""
    return "the position adds a bias of its own to every pair"


def dot_inputs(mechanism: Definition, q: Tensor, k: Tensor) -> DotInputs:
    """Placed and mapped tokens; the query bias only where the normaliser feels it."""
    k, position_bias = repeat_kv_heads(k, q.shape[1]), None
    positioned_q, positioned_k = q, k
    if not (mechanism.score.is_scaled_dot and mechanism.position.is_trivial):
        i, j = query_key_positions(q.shape[-2], k.shape[-2], q.device)
        positioned_q, positioned_k = mechanism.position.encode(q.float(), i), mechanism.position.encode(k.float(), j)
        position_bias = mechanism.position.key_bias(j)
    dot_form = mechanism.score.dot_form(positioned_q, positioned_k)
    assert dot_form is not None, "offer() has seen a dot form"
    ignores_row_constant = mechanism.normaliser.is_shift_invariant
    query_bias = (
        None if dot_form.query_bias is None or ignores_row_constant else dot_form.query_bias().float().contiguous()
    )
    key_bias = None if dot_form.key_bias is None else dot_form.key_bias.float().contiguous()
    if position_bias is not None:
        position_bias = position_bias.float().expand(*q.shape[:2], -1)
        key_bias = position_bias.contiguous() if key_bias is None else key_bias + position_bias
    return DotInputs(
        pad_to_power_of_two(dot_form.q.to(q.dtype)),
        pad_to_power_of_two(dot_form.k.to(q.dtype)),
        dot_form.scale,
        query_bias,
        key_bias,
    )


def padded_values(mechanism: Definition, v: Tensor, n_heads: int) -> tuple[Tensor, int]:
    """g(v) for every head, computed in float32 and rounded once, and how wide it is without its filling."""
    v = repeat_kv_heads(v, n_heads)
    v = v if mechanism.value.is_identity else mechanism.value(v.float()).to(v.dtype)
    return pad_to_power_of_two(v), v.shape[-1]


def pad_to_power_of_two(x: Tensor) -> Tensor:
    """Rows filled with zeros to a power of two of at least 16 numbers, which lie side by side."""
    width = max(16, 1 << (x.shape[-1] - 1).bit_length())
    if width != x.shape[-1]:
        return pad(x, (0, width - x.shape[-1]))
    is_dense = x.stride(-1) == 1 and x.shape[-2] * x.stride(-2) < MAX_HEAD_SPAN
    return x if is_dense else x.contiguous()
