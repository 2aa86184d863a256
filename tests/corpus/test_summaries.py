"""Summaries merge exactly: for any split and order, and through Parquet."""

import random
from collections import Counter
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rheoscope.corpus.batch_analyses import BatchResult, append_result, merge_results
from rheoscope.corpus.documents import Documents
from rheoscope.corpus.field_cells import Cells, reduce_to_cells
from rheoscope.corpus.histogram import Histogram
from rheoscope.corpus.segments import MAX_SEGMENTS
from rheoscope.corpus.summaries import (
    BINS_PER_CELL,
    FieldValues,
    Summary,
    bin_edges,
    from_columns,
    merge_parts,
    quantiles,
    summarise,
    to_columns,
)
from rheoscope.space.analysis import Field
from tests.elsewhere import AWAY, elsewhere

pa = pytest.importorskip("pyarrow")
HEADS, TOKENS = Field(("layer", "head"), "of heads"), Field(("layer", "token"), "of tokens")
VALUES = st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.0, 1.0, float("nan")])


def numbers(x: torch.Tensor, field: Field, ids: list[int]) -> FieldValues:
    field_values = reduce_to_cells(x, field).to_field_values(np.asarray(ids, np.int64))
    assert field_values is not None
    return field_values


def identical_bits(first: Any, second: Any) -> bool:
    """Whether two values are equal bit for bit."""
    if isinstance(first, np.ndarray):
        return first.tobytes() == second.tobytes()
    if not isinstance(first, Summary | Documents):
        return first == second
    return all(identical_bits(getattr(first, part.name), getattr(second, part.name)) for part in fields(first))


@given(st.data(), st.sampled_from([HEADS, TOKENS]), st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_merging_is_independent_of_split_and_order(data: st.DataObject, field: Field, rng: random.Random) -> None:
    x = torch.from_numpy(
        data.draw(arrays(np.float32, st.tuples(st.integers(1, 7), st.just(2), st.just(3)), elements=VALUES))
    )
    ids = [number * MAX_SEGMENTS for number in range(10, 10 + len(x))]
    expected = summarise(numbers(x, field, ids), 2)
    order = rng.sample(range(len(x)), len(x))
    cuts = sorted({0, len(x), data.draw(st.integers(0, len(x))), data.draw(st.integers(0, len(x)))})
    groups = [order[low:high] for low, high in pairwise(cuts)]
    parts = [summarise(numbers(x[indices], field, [ids[number] for number in indices]), 2) for indices in groups]
    assert identical_bits(merge_parts(parts, 2), expected)
    assert identical_bits(merge_parts([merge_parts(parts[:1], 2), *parts[1:]], 2), expected)
    assert identical_bits(from_columns(pa.table(to_columns(expected))), expected)


def test_summaries_equal_those_of_numpy() -> None:
    x = torch.randn(200, 2, 3, generator=torch.Generator().manual_seed(0))
    x[3, 1, 2] = torch.nan
    summary = summarise(numbers(x, HEADS, list(range(200))), 4)
    flat = x.flatten(1).double().numpy()
    mean, sd = summary.moments()
    np.testing.assert_allclose(mean, np.nanmean(flat, 0), rtol=1e-12)
    np.testing.assert_allclose(sd, np.nanstd(flat, 0, ddof=1), rtol=1e-9)
    assert summary.missing.tolist() == [0, 0, 0, 0, 0, 1]
    expected = np.nanquantile(flat, [0.25, 0.5, 0.9], axis=0, method="inverted_cdf").T
    np.testing.assert_allclose(quantiles(summary, [0.25, 0.5, 0.9]), expected, rtol=0.008)
    top_texts = np.argsort(-flat[:, 0], kind="stable")[:4]
    assert summary.most[summary.most["cell"] == 0]["text"].tolist() == top_texts.tolist()


def test_token_values_are_averaged_per_text_and_counted_singly() -> None:
    x = torch.tensor([[[1.0, 3.0, torch.nan], [5.0, 5.0, 5.0]], [[2.0, 2.0, 2.0], [torch.nan] * 3]])
    summary = summarise(numbers(x, TOKENS, [7, 8]), 1)
    assert summary.moments()[0].tolist() == [2.0, 5.0]
    assert (summary.items.tolist(), summary.texts.tolist(), summary.missing.tolist()) == ([5, 3], [2, 1], [0, 1])
    assert summary.most[["value", "text", "token"]].tolist() == [(3.0, 7, 1), (5.0, 7, 0)]
    assert summary.least[["value", "text", "token"]].tolist() == [(1.0, 7, 0), (5.0, 7, 0)]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_value_lies_in_its_narrow_bin(value: float) -> None:
    summary = summarise(numbers(torch.tensor([[[value]]]), HEADS, [0]), 1)
    low, high = bin_edges(summary.bins % BINS_PER_CELL)
    assert low[0] <= value <= high[0]
    if 1e-30 < abs(value) < 1e30:
        assert high[0] - low[0] <= 0.0079 * abs(value)


def test_labels_have_no_mean_and_booleans_have_a_share() -> None:
    ids = reduce_to_cells(torch.tensor([[5, 6]]), Field(("k",), "ids", is_categorical=True))
    assert ids.to_field_values(np.arange(1)) is None
    assert ids.value is not None
    assert ids.value.tolist() == [[5, 6]]
    assert summarise(numbers(torch.tensor([[True], [False]]), Field(("k",), "is it"), [0, 1]), 1).moments()[
        0
    ].tolist() == [0.5]


@given(arrays(np.float32, (4, 2, 5), elements=VALUES), st.sampled_from([1, 10**9]))
@settings(max_examples=20)
def test_sorting_and_tabulating_give_the_same_counts(x: np.ndarray, dense_factor: int) -> None:
    """Few numbers are sorted and many are tabulated; both are compared with a count in Python."""
    is_finite = np.isfinite(x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rheoscope.corpus.histogram.DENSE_FACTOR", dense_factor)
        bins, counts = Histogram.from_values(torch.from_numpy(x), torch.from_numpy(is_finite)).to_counts()
    upper = (x.view(np.int32) >> 16) + BINS_PER_CELL // 2
    expected = Counter((np.arange(2)[None, :, None] * BINS_PER_CELL + upper)[is_finite].tolist())
    assert dict(zip(bins.tolist(), counts.tolist(), strict=True)) == expected
    assert bins.tolist() == sorted(expected)


@given(arrays(np.float32, (3, 2, 5), elements=VALUES), st.lists(st.sampled_from([1, 10**9]), min_size=3, max_size=3))
@settings(max_examples=20)
def test_joined_histograms_equal_the_histogram_of_all_values(x: np.ndarray, dense_factors: list[int]) -> None:
    is_finite = np.isfinite(x)
    parts = []
    for number, factor in enumerate(dense_factors):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rheoscope.corpus.histogram.DENSE_FACTOR", factor)
            parts.append(
                Histogram.from_values(
                    torch.from_numpy(x[number : number + 1]), torch.from_numpy(is_finite[number : number + 1])
                )
            )
    joined = Histogram.join(parts).to_counts()
    expected = Histogram.from_values(torch.from_numpy(x), torch.from_numpy(is_finite)).to_counts()
    assert [array.tolist() for array in joined] == [array.tolist() for array in expected]


@given(arrays(np.float32, (5, 2, 4), elements=VALUES), st.sampled_from([1, 5000, 20_000, 10**9]))
@settings(max_examples=20)
def test_appended_results_share_one_histogram(x: np.ndarray, dense_factor: int) -> None:
    """Whether all batches fill a table, some of them together, or none."""
    results = [
        BatchResult([number], {"x": reduce_to_cells(torch.from_numpy(row[None]), TOKENS)}, {})
        for number, row in enumerate(x)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rheoscope.corpus.histogram.DENSE_FACTOR", dense_factor)
        parts: list[BatchResult] = []
        for result in results:
            parts = append_result(parts, result)
        assert all(part.fields["x"].histogram.size == 0 for part in parts[1:])  # type: ignore[union-attr]
        appended, expected = (merge_results(group).fields["x"].to_host() for group in (parts, results))
    histogram = parts[0].fields["x"].histogram
    assert histogram is not None
    assert (histogram.table is None) == (dense_factor * x.size < 2 * BINS_PER_CELL)
    assert histogram.table is None or histogram.unsorted is None
    assert [array.tolist() for array in appended.histogram.to_counts()] == [
        array.tolist() for array in expected.histogram.to_counts()
    ]  # type: ignore[union-attr]
    assert appended.value.tobytes() == expected.value.tobytes()


@pytest.mark.parametrize(
    "field", [HEADS, TOKENS, Field(("layer", "k"), "ids", is_categorical=True)], ids=["heads", "tokens", "names"]
)
def test_values_on_another_device_give_the_same_cells(field: Field) -> None:
    x = torch.randn(6, 2, 3, generator=torch.Generator().manual_seed(0))
    x[2, 1] = torch.nan
    x = x if not field.is_categorical else (9 * x).nan_to_num().int()
    on_host = Cells.join([reduce_to_cells(x[:4], field), None, reduce_to_cells(x[4:], field)], [4, 1, 2]).to_host()
    with elsewhere():
        on_device = Cells.join(
            [reduce_to_cells(part.to(AWAY), field) if len(part) else None for part in (x[:4], x[:0], x[4:])], [4, 1, 2]
        )
        on_device = on_device.to_host()
    for part in fields(Cells):
        host_part, device_part = (
            x.to_counts() if isinstance(x, Histogram) else x
            for x in (getattr(cells, part.name) for cells in (on_host, on_device))
        )
        if isinstance(host_part, np.ndarray | tuple) and part.name not in ("cell_dims", "token_dims"):
            assert all(
                a.tobytes() == b.tobytes()
                for a, b in zip(np.atleast_1d(host_part), np.atleast_1d(device_part), strict=True)
            )
        else:
            assert host_part == device_part
