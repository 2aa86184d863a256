"""Near and far keys joined: the softmax of all of them, forward and backward."""

import torch
from torch import Tensor

from rheoscope.attention.lower.merged_softmax import join_near_and_far
from tests.attention.cases import gap, random

N, REACH, SCALE = 12, 3, 0.4


def scored(q: Tensor, k: Tensor, shift: Tensor) -> Tensor:
    """Scores of all pairs, to far ones of which `shift` is added; no query sees what follows it."""
    i, j = torch.arange(N)[:, None], torch.arange(N)
    s = SCALE * q @ k.mT + torch.where(i - j >= REACH, shift[:, None, None], 0)
    return s.masked_fill(j > i, -torch.inf)


def test_the_whole_is_the_softmax_of_all_keys() -> None:
    q, k, v, g = (random(seed, 2, 3, N, 4) for seed in range(4))
    leaves = [x.requires_grad_() for x in (q, k, v, random(5, 3))]
    q, k, v, shift = leaves
    s = scored(*(leaves[at] for at in (0, 1, 3)))
    due, total = s.softmax(-1) @ v, s.logsumexp(-1)
    i, j = torch.arange(N)[:, None], torch.arange(N)
    near = s.masked_fill(i - j >= REACH, -torch.inf)
    out, found = join_near_and_far(near.softmax(-1) @ v, near.logsumexp(-1), q, k, v, shift, SCALE, REACH)
    assert max(gap(out, due), gap(found, total)) < 1e-6  # the log-sum-exp of far keys is float32
    own, right = (torch.autograd.grad(x, leaves, g, retain_graph=True) for x in (out, due))
    for a, b in zip(own, right, strict=True):
        assert gap(a, b) < 1e-6
