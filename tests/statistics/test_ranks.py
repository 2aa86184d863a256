"""Ranks along rows equal SciPy's over the usable entries."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata, spearmanr

from rheoscope.statistics import ranks as module
from rheoscope.statistics.ranks import (
    centred_ranks,
    centred_ranks_by_search,
    centred_ranks_in_bins,
    rank_correlations,
    spearman,
    stable_argsort,
    unit_ranks,
)
from tests.pretrained.cases import random


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), m=st.integers(1, 6), n=st.integers(1, 9), levels=st.sampled_from([2, 4, 10**6]))
def test_ranks_equal_scipys_with_and_without_ties(seed: int, m: int, n: int, levels: int) -> None:
    x = (random(seed, 2, m, n) * levels).round()
    usable = random(seed + 1, m, n) > -0.5
    ranks = centred_ranks(x, usable)
    for t in range(2):
        for i in range(m):
            mask = usable[i].numpy()
            assert not ranks[t, i][~usable[i]].any()
            if mask.any():
                expected = rankdata(x[t, i].numpy()[mask])
                assert np.allclose(ranks[t, i].numpy()[mask], expected - expected.mean())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_errors_are_ties(dtype: torch.dtype) -> None:
    """Numbers that differ in the last bit are equal; numbers that differ by a thousandth are not."""
    x = torch.tensor([[1.0, 1.0, 1.001, -7.0]], dtype=dtype)
    x[0, 1] = torch.nextafter(x[0, 1], torch.tensor(2.0, dtype=dtype))
    assert centred_ranks(x, torch.ones(1, 4, dtype=torch.bool)).tolist() == [[0.0, 0.0, 1.5, -1.5]]


def test_constant_rows_have_rank_zero() -> None:
    x = torch.full((1, 5), 3.0)
    assert not centred_ranks(x, torch.ones(1, 5, dtype=torch.bool)).any()
    assert not centred_ranks(x, torch.zeros(1, 5, dtype=torch.bool)).any()


@settings(max_examples=30)  # with twelve rows each
@given(seed=st.integers(0, 10**6), n=st.integers(3, 9), levels=st.sampled_from([2, 10**6]))
def test_spearman_equals_scipys_over_usable_entries(seed: int, n: int, levels: int) -> None:
    a, b = ((random(seed + offset, 2, 3, n) * levels).round() for offset in (0, 1))
    usable = random(seed + 2, 3, n) > -1
    every, masked = spearman(a, b), spearman(a, b, usable)
    for t in range(2):
        for i in range(3):
            for result, mask in ((every, np.ones(n, dtype=bool)), (masked, usable[i].numpy())):
                x, y = a[t, i].numpy()[mask], b[t, i].numpy()[mask]
                varies = len(x) > 1 and min(np.ptp(x), np.ptp(y)) > 0
                expected = spearmanr(x, y).statistic if varies else 0
                assert float(result[t, i]) == pytest.approx(expected)
    assert torch.allclose(spearman(a[0, 0], b[0, 0]), every[0, 0])


def test_unit_ranks_have_length_one_or_zero() -> None:
    rows = torch.tensor([[4.0, 1.0, 1.0, 9.0], [2.0, 2.0, 2.0, 2.0]])
    assert torch.allclose(unit_ranks(rows).norm(dim=-1), torch.tensor([1.0, 0.0], dtype=torch.float64))


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 40), levels=st.sampled_from([1, 2, 4, 10**6]))
def test_correlations_of_sorted_rows_equal_those_of_their_ranks(seed: int, n: int, levels: int) -> None:
    """With runs of ties of any length, constant rows, numbers of both signs and two leading dimensions."""
    x = (random(seed, 2, 3, n) * levels).round().float()
    x[0, 0] = 3.0
    reference = unit_ranks((random(seed + 1, n) * levels).round())
    expected = (unit_ranks(x.double()) * reference).sum(-1)
    assert torch.allclose(rank_correlations(x, reference), expected, atol=1e-12)


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 30), chunk=st.sampled_from([1, 40, 1 << 17]))
def test_correlations_equal_those_of_ranks(seed: int, n: int, chunk: int) -> None:
    """With rows of ties and constant rows, whatever the number of rows that are ranked at once."""
    x, reference_ranks = random(seed, 2, 4, n), unit_ranks(random(seed + 1, n))
    x[0, 1], x[1, 2] = (x[0, 1] * 2).round(), 3.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CACHED_ROWS", chunk)
        correlations = rank_correlations(x, reference_ranks)
    assert torch.allclose(correlations, unit_ranks(x) @ reference_ranks, atol=1e-12)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 40), single=st.booleans())
def test_argsort_equals_a_stable_sort(seed: int, n: int, single: bool) -> None:
    """With equal numbers, infinities and zeros of both signs; torch's argsort is the reference."""
    x = (random(seed, 3, n) * 3).round(decimals=1)
    x[:, :: max(1, n // 3)] = float("inf")
    x[1, 0], x[2, -1] = 0.0, -0.0
    x = x.float() if single else x
    ranks = stable_argsort(x)
    assert torch.equal(x.gather(-1, ranks), x.gather(-1, x.argsort(dim=-1, stable=True)))
    assert torch.equal(ranks.sort(-1).values, torch.arange(n).expand(3, n))


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 40), levels=st.sampled_from([2, 4, 10**6]))
def test_gpu_algorithms_equal_the_cpu_algorithm(seed: int, n: int, levels: int) -> None:
    """By binary search, and in bins far narrower than the gaps between these numbers."""
    x, usable = (random(seed, 2, 3, n) * levels).round(), random(seed + 1, 3, n) > -0.5
    x[..., :1] = torch.where(usable[:, :1], x[..., :1], torch.nan)  # masked entries may be anything
    expected = centred_ranks(x.nan_to_num(), usable)
    assert torch.allclose(centred_ranks_by_search(x, usable), expected)
    if levels < 10**6:
        assert torch.allclose(centred_ranks_in_bins(x, usable).double(), expected)


def test_binned_ranks_have_the_correlation_of_exact_ranks() -> None:
    x = random(0, 2, 40000).abs()
    y, usable = x + random(1, 2, 40000).abs(), random(2, 2, 40000) > -1

    def correlation(rank: Any) -> Any:
        a, b = (rank(row, usable).double() for row in (x, y))
        return (a * b).sum(-1) / a.norm(dim=-1) / b.norm(dim=-1)

    assert torch.allclose(correlation(centred_ranks_in_bins), correlation(centred_ranks), atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [900, 50000])
def test_gpu_ranks_equal_cpu_ranks(n: int) -> None:
    x, y = random(0, 3, n).abs().float().cpu(), random(1, 3, n).abs().float().cpu()
    assert torch.allclose(spearman(x.cuda(), x.cuda() + y.cuda()).cpu().double(), spearman(x, x + y), atol=1e-5)
