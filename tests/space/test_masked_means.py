"""Sums and means over texts side by side, against each text alone; what does not count is never read."""

import torch

from rheoscope.space.masked_means import centred, counts, kept, kept_rows, mean
from tests.cases import random

THERE = torch.tensor([[True, True, False, True], [False, True, True, False]])


def poisoned(*shape: int) -> torch.Tensor:
    """Numbers of two texts of four tokens along the last axis, NaN where a token does not count."""
    return kept(random(0, 2, *shape, 4), THERE, torch.nan)


def test_means_are_those_of_each_text_alone() -> None:
    for shape in ((), (3,), (3, 5)):
        x = poisoned(*shape)
        for at, there in enumerate(THERE):
            assert torch.allclose(mean(x, THERE)[at], x[at][..., there].mean(-1))
            assert torch.allclose(mean(x[at], there), x[at][..., there].mean(-1))
        assert torch.equal(mean(x.nan_to_num(), None), x.nan_to_num().mean(-1))


def test_clouds_are_seen_from_the_mean_of_what_counts() -> None:
    x = poisoned(3).mT
    for at, there in enumerate(THERE):
        alone = x[at][there]
        assert torch.allclose(centred(x, THERE)[at][there], alone - alone.mean(0))
    assert not centred(x, THERE)[~THERE].any()
    assert not kept_rows(x, THERE)[~THERE].any()
    assert kept_rows(x, None) is x


def test_counts_are_of_every_text() -> None:
    assert counts(torch.zeros(2, 3, 4), THERE).flatten().tolist() == [3, 2]
    assert counts(torch.zeros(2, 3, 4), None) == 4
