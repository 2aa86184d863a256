"""Linear attention in O(N) from sums of phi(k) v instead of weights; causal attention sums over chunks.

o(q) = phi(q) S / phi(q) z,   S = sum_j phi(k_j)^T v_j,   z = sum_j phi(k_j)
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from rheoscope.attention.definition import Definition, query_key_positions, repeat_kv_heads
from rheoscope.attention.lower.lowering import LoweredCall, unless_compiling
from rheoscope.messages.message import Message

CHUNK = 128
"""Tokens of a chunk."""


def try_lower(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> LoweredCall | str:
    if not mechanism.normaliser.divides_by_sum:
        return unless_compiling(
            lambda: Message("sums over keys need a normaliser that divides by the sum of the scores")
        )
    causal = mechanism.mask.is_causal
    if not (mechanism.mask.allows_all or causal) or (causal and q.shape[-2] != k.shape[-2]):
        return unless_compiling(
            lambda: Message("sums over keys need no mask, or the causal mask with as many queries as keys")
        )
    dot_form = mechanism.score.dot_form(q[:1, :, :1], repeat_kv_heads(k[:1, :, :1], q.shape[1]))
    if dot_form is None or dot_form.query_bias is not None or dot_form.key_bias is not None:
        return unless_compiling(lambda: Message("the score is not a plain inner product of features"))
    i, _ = query_key_positions(1, k.shape[-2], q.device)  # the last token, since a table of m < n rows lacks the first
    if mechanism.position.bias(i, i) is not None:
        return unless_compiling(lambda: Message("the position adds a bias to every pair"))
    return LoweredCall(
        unless_compiling(
            lambda: Message("weights are inner products of features, so sums over keys replace them in O(N)")
        ),
        run,
    )


def run(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    dtype, compute_dtype = q.dtype, torch.promote_types(q.dtype, torch.float32)
    i, j = query_key_positions(q.shape[-2], k.shape[-2], q.device)
    keys, values = (
        repeat_kv_heads(k.to(compute_dtype), q.shape[1]),
        mechanism.value(repeat_kv_heads(v.to(compute_dtype), q.shape[1])),
    )
    dot_form = mechanism.score.dot_form(
        mechanism.position.encode(q.to(compute_dtype), i), mechanism.position.encode(keys, j)
    )
    assert dot_form is not None, "try_lower has checked the dot form"
    values_and_ones = pad(values, (0, 1), value=1.0)
    sums = (
        causal_sums(dot_form.q, dot_form.k, values_and_ones)
        if mechanism.mask.is_causal
        else dot_form.q @ (dot_form.k.mT @ values_and_ones)
    )
    denominator = sums[..., -1:]
    return (sums[..., :-1] / torch.where(denominator == 0, 1, denominator)).to(dtype)


def causal_sums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """sum_{j <= i} (q_i . k_j) v_j: pairs inside a chunk, and the running sum of k^T v over earlier chunks."""
    n = q.shape[-2]
    q, k, v = (pad(x, (0, 0, 0, -n % CHUNK)).unflatten(-2, (-1, CHUNK)) for x in (q, k, v))
    within_chunk = (q @ k.mT).tril() @ v
    chunk_states = (k.mT @ v).cumsum(-3)
    previous_states = torch.cat([torch.zeros_like(chunk_states[..., :1, :, :]), chunk_states[..., :-1, :, :]], -3)
    return (within_chunk + q @ previous_states).flatten(-3, -2)[..., :n, :]
