"""Attention to near and far keys, merged, equals the softmax over all keys, forward and backward."""

import torch
from torch import Tensor

from rheoscope.attention.lower.merged_softmax import join_near_and_far
from tests.attention.cases import gap, random

N, REACH, SCALE = 12, 3, 0.4


def causal_scores(q: Tensor, k: Tensor, shift: Tensor) -> Tensor:
    """The causal scores of all pairs, with `shift` added to far ones."""
    i, j = torch.arange(N)[:, None], torch.arange(N)
    s = SCALE * q @ k.mT + torch.where(i - j >= REACH, shift[:, None, None], 0)
    return s.masked_fill(j > i, -torch.inf)


def test_merged_attention_is_the_softmax_of_all_keys() -> None:
    q, k, v, g = (random(seed, 2, 3, N, 4) for seed in range(4))
    leaves = [x.requires_grad_() for x in (q, k, v, random(5, 3))]
    q, k, v, shift = leaves
    s = causal_scores(*(leaves[index] for index in (0, 1, 3)))
    expected, log_sum = s.softmax(-1) @ v, s.logsumexp(-1)
    i, j = torch.arange(N)[:, None], torch.arange(N)
    near = s.masked_fill(i - j >= REACH, -torch.inf)
    out, merged_log_sum = join_near_and_far(near.softmax(-1) @ v, near.logsumexp(-1), q, k, v, shift, SCALE, REACH)
    assert max(gap(out, expected), gap(merged_log_sum, log_sum)) < 1e-6  # the log-sum-exp of far keys is float32
    actual, due = (torch.autograd.grad(x, leaves, g, retain_graph=True) for x in (out, expected))
    assert max(gap(a, b) for a, b in zip(actual, due, strict=True)) < 1e-6
