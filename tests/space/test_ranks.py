"""Ranks along rows: scipy's, over the entries that count."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata, spearmanr

from rheoscope.space.ranks import ranked, spearman
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


@given(seed=st.integers(0, 10**6), n=st.integers(3, 30), levels=st.sampled_from([2, 4, 10**6]))
def test_rank_correlation_is_scipys_over_the_entries_that_count(seed: int, n: int, levels: int) -> None:
    a, b = (random(seed, 2, 3, n) * levels).round()
    usable = random(seed + 1, n) > -0.5
    every, some = spearman(a[:, None], b[None]), spearman(a, b, usable)
    there = usable.numpy()
    with np.errstate(all="ignore"):
        for i in range(3):
            for j in range(3):
                wanted = spearmanr(a[i], b[j]).statistic if _vary(a[i], b[j]) else np.nan
                assert float(every[i, j]) == pytest.approx(wanted, nan_ok=True)
            pair = a[i].numpy()[there], b[i].numpy()[there]
            wanted = spearmanr(*pair).statistic if _vary(*pair) else np.nan
            assert float(some[i]) == pytest.approx(wanted, nan_ok=True)


def _vary(*rows) -> bool:
    return all(len(np.unique(row)) > 1 for row in rows)
