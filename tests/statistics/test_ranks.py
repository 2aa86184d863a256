"""Ranks along rows: scipy's, over the entries that count."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata, spearmanr

from rheoscope.statistics.ranks import ordered, ranked, ranked_by_search, ranked_in_classes, spearman, unit_ranks
from tests.pretrained.cases import random


@given(seed=st.integers(0, 10**6), m=st.integers(1, 6), n=st.integers(1, 9), levels=st.sampled_from([2, 4, 10**6]))
def test_ranks_are_scipys_with_and_without_ties(seed: int, m: int, n: int, levels: int) -> None:
    x = (random(seed, 2, m, n) * levels).round()
    usable = random(seed + 1, m, n) > -0.5
    found = ranked(x, usable)
    for t in range(2):
        for i in range(m):
            there = usable[i].numpy()
            assert not found[t, i][~usable[i]].any()
            if there.any():
                wanted = rankdata(x[t, i].numpy()[there])
                assert np.allclose(found[t, i].numpy()[there], wanted - wanted.mean())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_makes_no_order(dtype: torch.dtype) -> None:
    """Numbers that differ in the last bit are equal; numbers that differ by a thousandth are not."""
    x = torch.tensor([[1.0, 1.0, 1.001, -7.0]], dtype=dtype)
    x[0, 1] = torch.nextafter(x[0, 1], torch.tensor(2.0, dtype=dtype))
    assert ranked(x, torch.ones(1, 4, dtype=torch.bool)).tolist() == [[0.0, 0.0, 1.5, -1.5]]


def test_equal_rows_have_no_order() -> None:
    x = torch.full((1, 5), 3.0)
    assert not ranked(x, torch.ones(1, 5, dtype=torch.bool)).any()
    assert not ranked(x, torch.zeros(1, 5, dtype=torch.bool)).any()


@settings(max_examples=30)  # of twelve rows each
@given(seed=st.integers(0, 10**6), n=st.integers(3, 9), levels=st.sampled_from([2, 10**6]))
def test_spearman_is_scipys_over_the_entries_that_count(seed: int, n: int, levels: int) -> None:
    a, b = ((random(seed + at, 2, 3, n) * levels).round() for at in (0, 1))
    usable = random(seed + 2, 3, n) > -1
    every, some = spearman(a, b), spearman(a, b, usable)
    for t in range(2):
        for i in range(3):
            for found, there in ((every, np.ones(n, dtype=bool)), (some, usable[i].numpy())):
                x, y = a[t, i].numpy()[there], b[t, i].numpy()[there]
                varies = len(x) > 1 and min(np.ptp(x), np.ptp(y)) > 0
                wanted = spearmanr(x, y).statistic if varies else 0
                assert float(found[t, i]) == pytest.approx(wanted)
    assert torch.allclose(spearman(a[0, 0], b[0, 0]), every[0, 0])


def test_unit_ranks_have_length_one_or_none() -> None:
    rows = torch.tensor([[4.0, 1.0, 1.0, 9.0], [2.0, 2.0, 2.0, 2.0]])
    assert torch.allclose(unit_ranks(rows).norm(dim=-1), torch.tensor([1.0, 0.0], dtype=torch.float64))


@given(seed=st.integers(0, 10**6), n=st.integers(1, 40), single=st.booleans())
def test_places_are_those_of_a_stable_sort(seed: int, n: int, single: bool) -> None:
    """The slow twin sorts places; equal numbers, infinities, zeros of both signs among them."""
    x = (random(seed, 3, n) * 3).round(decimals=1)
    x[:, :: max(1, n // 3)] = float("inf")
    x[1, 0], x[2, -1] = 0.0, -0.0
    x = x.float() if single else x
    found = ordered(x)
    assert torch.equal(x.gather(-1, found), x.gather(-1, x.argsort(dim=-1, stable=True)))
    assert torch.equal(found.sort(-1).values, torch.arange(n).expand(3, n))


@given(seed=st.integers(0, 10**6), n=st.integers(1, 40), levels=st.sampled_from([2, 4, 10**6]))
def test_ranks_as_a_gpu_finds_them(seed: int, n: int, levels: int) -> None:
    """By searching, and in classes far narrower than what lies between these numbers."""
    x, usable = (random(seed, 2, 3, n) * levels).round(), random(seed + 1, 3, n) > -0.5
    x[..., :1] = torch.where(usable[:, :1], x[..., :1], torch.nan)  # what does not count may be anything
    wanted = ranked(x.nan_to_num(), usable)
    assert torch.allclose(ranked_by_search(x, usable), wanted)
    if levels < 10**6:
        assert torch.allclose(ranked_in_classes(x, usable).double(), wanted)


def test_classes_of_many_numbers_correlate_as_the_numbers_do() -> None:
    x = random(0, 2, 40000).abs()
    y, usable = x + random(1, 2, 40000).abs(), random(2, 2, 40000) > -1

    def correlation(rank: Any) -> Any:
        a, b = (rank(one, usable).double() for one in (x, y))
        return (a * b).sum(-1) / a.norm(dim=-1) / b.norm(dim=-1)

    assert torch.allclose(correlation(ranked_in_classes), correlation(ranked), atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [900, 50000])
def test_ranks_on_a_gpu_are_those_on_a_cpu(n: int) -> None:
    x, y = random(0, 3, n).abs().float().cpu(), random(1, 3, n).abs().float().cpu()
    assert torch.allclose(spearman(x.cuda(), x.cuda() + y.cuda()).cpu().double(), spearman(x, x + y), atol=1e-5)
