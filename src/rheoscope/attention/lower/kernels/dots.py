"""The scores of a mechanism as kernels read them: scale q.k + query bias + key bias, in the dtype of the inputs.

Positions and maps are applied to tokens in float32 and rounded once. Biases stay in float32. Rows are padded with zeros
to a width that is a power of two.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from rheoscope.attention.definition import Definition, query_key_positions, repeat_kv_heads
from rheoscope.attention.lower.cudnn import dtype_name
from rheoscope.attention.lower.lowering import unless_compiling
from rheoscope.messages.message import Message

MAX_WIDTH = 128
"""The width of the widest rows that fit into registers."""
MAX_HEADS = 65535
"""The maximum number of heads, over all texts, in one launch."""
MAX_HEAD_SPAN = 1 << 31
"""The largest span of a head in memory, in numbers, that 32-bit offsets reach."""
KERNEL_DEVICE = "cuda"
KERNEL_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class DotInputs(NamedTuple):
    """q (b, h, m, d) and k (b, h, n, d) with the scale and the biases of their scores. A bias of None is 0."""

    q: Tensor
    k: Tensor
    scale: float
    query_bias: Float[Tensor, "b h m"] | None
    key_bias: Float[Tensor, "b h n"] | None


def tensor_refusal(q: Tensor, k: Tensor) -> str:
    """Why the kernels cannot read these tensors, or \"\" if they can."""
    if q.device.type != KERNEL_DEVICE:
        return unless_compiling(
            lambda: Message("kernels run on a CUDA device, got tensors on {device}", device=q.device.type)
        )
    if q.dtype not in KERNEL_DTYPES or k.dtype != q.dtype:
        return unless_compiling(
            lambda: Message("kernels read bfloat16, float16 or float32, got {dtype}", dtype=dtype_name(q.dtype))
        )
    n_heads = q.shape[0] * q.shape[1]
    if not q.shape[-2] or not k.shape[-2] or n_heads > MAX_HEADS:
        return unless_compiling(
            lambda: Message(
                "kernels need 1 to {most} heads over all texts and at least one query and key, "
                "got {heads} heads, {m} queries and {n} keys",
                most=MAX_HEADS,
                heads=n_heads,
                m=q.shape[-2],
                n=k.shape[-2],
            )
        )
    return ""


def mask_refusal(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    if mechanism.mask.allows_all or (mechanism.mask.is_causal and q.shape[-2] <= k.shape[-2]):
        return ""
    return unless_compiling(
        lambda: Message("kernels need no mask, or the causal mask with at least as many keys as queries")
    )


def width_refusal(width: int) -> str:
    """Why rows of this width do not fit, or "" if they do."""
    if width <= MAX_WIDTH:
        return ""
    return unless_compiling(
        lambda: Message("kernels read rows of at most {most} numbers, got {width}", most=MAX_WIDTH, width=width)
    )


def pair_bias_refusal() -> str:
    return unless_compiling(lambda: Message("the position adds a bias to every pair"))


def dot_refusal(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    """Why a kernel cannot read the scores with their position as dot products, tested on one token of every head."""
    dot_form = mechanism.score.dot_form(q[:1, :, :1], repeat_kv_heads(k[:1, :, :1], q.shape[1]))
    if dot_form is None:
        return mechanism.score.no_dot_form_reason
    if dot_form.q.shape[-1] > MAX_WIDTH:
        return width_refusal(dot_form.q.shape[-1])
    i, _ = query_key_positions(1, k.shape[-2], q.device)  # the last token, since a table of m < n rows lacks the first
    if mechanism.position.bias(i, i) is None:
        return ""
    ignores_row_constant = mechanism.mask.is_causal and mechanism.normaliser.is_shift_invariant
    if ignores_row_constant and mechanism.position.key_bias(i) is not None:
        return ""
    return pair_bias_refusal()


def dot_inputs(mechanism: Definition, q: Tensor, k: Tensor) -> DotInputs:
    """Positioned and mapped tokens, with the query bias only if the normaliser depends on it."""
    k, position_bias = repeat_kv_heads(k, q.shape[1]), None
    positioned_q, positioned_k = q, k
    if not (mechanism.score.is_scaled_dot and mechanism.position.is_trivial):
        i, j = query_key_positions(q.shape[-2], k.shape[-2], q.device)
        positioned_q, positioned_k = mechanism.position.encode(q.float(), i), mechanism.position.encode(k.float(), j)
        position_bias = mechanism.position.key_bias(j)
    dot_form = mechanism.score.dot_form(positioned_q, positioned_k)
    assert dot_form is not None, "try_lower has checked the dot form"
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
    """g(v) for every head, computed in float32 and rounded once, and its width without padding."""
    v = repeat_kv_heads(v, n_heads)
    v = v if mechanism.value.is_identity else mechanism.value(v.float()).to(v.dtype)
    return pad_to_power_of_two(v), v.shape[-1]


def pad_to_power_of_two(x: Tensor) -> Tensor:
    """Rows padded with zeros to a width that is a power of two and at least 16, each contiguous in memory."""
    width = max(16, 1 << (x.shape[-1] - 1).bit_length())
    if width != x.shape[-1]:
        return pad(x, (0, width - x.shape[-1]))
    is_dense = x.stride(-1) == 1 and x.shape[-2] * x.stride(-2) < MAX_HEAD_SPAN
    return x if is_dense else x.contiguous()
