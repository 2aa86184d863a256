"""Linear attention in O(N): sums of phi(k) v are kept instead of weights; causal attention walks over chunks.

o(q) = phi(q) S / phi(q) z,   S = sum_j phi(k_j)^T v_j,   z = sum_j phi(k_j)
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from rheoscope.attention.definition import Definition, for_every_head, positions
from rheoscope.attention.lower.lowering import Offer

CHUNK = 128


def offer(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Offer | str:
    if not mechanism.normaliser.divides_by_sum:
        return "only a normaliser that divides by the sum can be computed from sums"
    causal = mechanism.mask.is_causal
    if not (mechanism.mask.forbids_nothing or causal) or (causal and q.shape[-2] != k.shape[-2]):
        return "sums run over all keys or over the past of the same tokens; the mask is another"
    form = mechanism.score.dot(q[:1, :, :1], for_every_head(k[:1, :, :1], q.shape[1]))
    if form is None or form.query_bias is not None or form.key_bias is not None:
        return "the score is no bare inner product of features"
    i, _ = positions(1, k.shape[-2], q.device)  # the last token: a table of m < n rows has no row for the first
    if mechanism.position.bias(i, i) is not None:
        return "the position adds a bias of its own to every pair"
    return Offer("weights are inner products of features, so sums over keys replace them: O(N)", run)


def run(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    dtype, exact = q.dtype, torch.promote_types(q.dtype, torch.float32)
    i, j = positions(q.shape[-2], k.shape[-2], q.device)
    keys, values = for_every_head(k.to(exact), q.shape[1]), mechanism.value(for_every_head(v.to(exact), q.shape[1]))
    form = mechanism.score.dot(mechanism.position.place(q.to(exact), i), mechanism.position.place(keys, j))
    assert form is not None, "offer() has seen a dot form"
    with_count = pad(values, (0, 1), value=1.0)
    sums = causal_sums(form.q, form.k, with_count) if mechanism.mask.is_causal else form.q @ (form.k.mT @ with_count)
    total = sums[..., -1:]
    return (sums[..., :-1] / torch.where(total == 0, 1, total)).to(dtype)


def causal_sums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """sum_{j <= i} (q_i . k_j) v_j: inside a chunk by the triangle, before it by the running sum of k^T v."""
    n = q.shape[-2]
    q, k, v = (pad(x, (0, 0, 0, -n % CHUNK)).unflatten(-2, (-1, CHUNK)) for x in (q, k, v))
    inside = (q @ k.mT).tril() @ v
    states = (k.mT @ v).cumsum(-3)
    before = torch.cat([torch.zeros_like(states[..., :1, :, :]), states[..., :-1, :, :]], -3)
    return (inside + q @ before).flatten(-3, -2)[..., :n, :]
