"""Summaries merge exactly: any split, any order, through Parquet and back."""

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
    found = reduce_to_cells(x, field).to_field_values(np.asarray(ids, np.int64))
    assert found is not None
    return found


def same(one: Any, other: Any) -> bool:
    """Bit for bit."""
    if isinstance(one, np.ndarray):
        return one.tobytes() == other.tobytes()
    if not isinstance(one, Summary | Documents):
        return one == other
    return all(same(getattr(one, part.name), getattr(other, part.name)) for part in fields(one))


@given(st.data(), st.sampled_from([HEADS, TOKENS]), st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_any_split_in_any_order_is_the_whole(data: st.DataObject, field: Field, draw: random.Random) -> None:
    x = torch.from_numpy(
        data.draw(arrays(np.float32, st.tuples(st.integers(1, 7), st.just(2), st.just(3)), elements=VALUES))
    )
    ids = [at * MAX_SEGMENTS for at in range(10, 10 + len(x))]
    whole = summarise(numbers(x, field, ids), 2)
    order = draw.sample(range(len(x)), len(x))
    cut = sorted({0, len(x), data.draw(st.integers(0, len(x))), data.draw(st.integers(0, len(x)))})
    groups = [order[low:high] for low, high in pairwise(cut)]
    parts = [summarise(numbers(x[some], field, [ids[at] for at in some]), 2) for some in groups]
    assert same(merge_parts(parts, 2), whole)
    assert same(merge_parts([merge_parts(parts[:1], 2), *parts[1:]], 2), whole)
    assert same(from_columns(pa.table(to_columns(whole))), whole)


def test_it_says_what_numpy_says() -> None:
    x = torch.randn(200, 2, 3, generator=torch.Generator().manual_seed(0))
    x[3, 1, 2] = torch.nan
    one = summarise(numbers(x, HEADS, list(range(200))), 4)
    flat = x.flatten(1).double().numpy()
    mean, sd = one.moments()
    np.testing.assert_allclose(mean, np.nanmean(flat, 0), rtol=1e-12)
    np.testing.assert_allclose(sd, np.nanstd(flat, 0, ddof=1), rtol=1e-9)
    assert one.missing.tolist() == [0, 0, 0, 0, 0, 1]
    expected = np.nanquantile(flat, [0.25, 0.5, 0.9], axis=0, method="inverted_cdf").T
    np.testing.assert_allclose(quantiles(one, [0.25, 0.5, 0.9]), expected, rtol=0.008)
    best = np.argsort(-flat[:, 0], kind="stable")[:4]
    assert one.most[one.most["cell"] == 0]["text"].tolist() == best.tolist()


def test_numbers_of_tokens_are_averaged_in_a_text_and_counted_one_by_one() -> None:
    x = torch.tensor([[[1.0, 3.0, torch.nan], [5.0, 5.0, 5.0]], [[2.0, 2.0, 2.0], [torch.nan] * 3]])
    one = summarise(numbers(x, TOKENS, [7, 8]), 1)
    assert one.moments()[0].tolist() == [2.0, 5.0]
    assert (one.items.tolist(), one.texts.tolist(), one.missing.tolist()) == ([5, 3], [2, 1], [0, 1])
    assert one.most[["value", "text", "token"]].tolist() == [(3.0, 7, 1), (5.0, 7, 0)]
    assert one.least[["value", "text", "token"]].tolist() == [(1.0, 7, 0), (5.0, 7, 0)]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_number_lies_in_its_bin_and_the_bin_is_narrow(value: float) -> None:
    one = summarise(numbers(torch.tensor([[[value]]]), HEADS, [0]), 1)
    low, high = bin_edges(one.bins % BINS_PER_CELL)
    assert low[0] <= value <= high[0]
    if 1e-30 < abs(value) < 1e30:
        assert high[0] - low[0] <= 0.0079 * abs(value)


def test_names_have_no_mean_and_truths_have_a_share() -> None:
    ids = reduce_to_cells(torch.tensor([[5, 6]]), Field(("k",), "ids", is_categorical=True))
    assert ids.to_field_values(np.arange(1)) is None
    assert ids.value is not None
    assert ids.value.tolist() == [[5, 6]]
    assert summarise(numbers(torch.tensor([[True], [False]]), Field(("k",), "is it"), [0, 1]), 1).moments()[
        0
    ].tolist() == [0.5]


@given(arrays(np.float32, (4, 2, 5), elements=VALUES), st.sampled_from([1, 10**9]))
@settings(max_examples=20)
def test_a_sort_and_a_table_count_alike(x: np.ndarray, dense: int) -> None:
    """Few numbers are sorted, many are counted in a table of all bins: against a count in Python."""
    there = np.isfinite(x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rheoscope.corpus.histogram.DENSE_FACTOR", dense)
        bins, counts = Histogram.from_values(torch.from_numpy(x), torch.from_numpy(there)).to_counts()
    upper = (x.view(np.int32) >> 16) + BINS_PER_CELL // 2
    expected = Counter((np.arange(2)[None, :, None] * BINS_PER_CELL + upper)[there].tolist())
    assert dict(zip(bins.tolist(), counts.tolist(), strict=True)) == expected
    assert bins.tolist() == sorted(expected)


@given(arrays(np.float32, (3, 2, 5), elements=VALUES), st.lists(st.sampled_from([1, 10**9]), min_size=3, max_size=3))
@settings(max_examples=20)
def test_tables_and_sorted_counts_join_to_those_of_the_whole(x: np.ndarray, dense: list[int]) -> None:
    there = np.isfinite(x)
    parts = []
    for at, each in enumerate(dense):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rheoscope.corpus.histogram.DENSE_FACTOR", each)
            parts.append(Histogram.from_values(torch.from_numpy(x[at : at + 1]), torch.from_numpy(there[at : at + 1])))
    together = Histogram.join(parts).to_counts()
    whole = Histogram.from_values(torch.from_numpy(x), torch.from_numpy(there)).to_counts()
    assert [one.tolist() for one in together] == [one.tolist() for one in whole]


@given(arrays(np.float32, (5, 2, 4), elements=VALUES), st.sampled_from([1, 5000, 20_000, 10**9]))
@settings(max_examples=20)
def test_a_shard_of_many_batches_holds_one_table(x: np.ndarray, dense: int) -> None:
    """However many numbers make a table: all at once, some batches together, or never."""
    answers = [
        BatchResult([at], {"x": reduce_to_cells(torch.from_numpy(row[None]), TOKENS)}, {}) for at, row in enumerate(x)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rheoscope.corpus.histogram.DENSE_FACTOR", dense)
        parts: list[BatchResult] = []
        for answer in answers:
            parts = append_result(parts, answer)
        assert all(one.fields["x"].histogram.size == 0 for one in parts[1:])  # type: ignore[union-attr]
        found, wanted = (merge_results(some).fields["x"].to_host() for some in (parts, answers))
    held = parts[0].fields["x"].histogram
    assert held is not None
    assert (held.table is None) == (dense * x.size < 2 * BINS_PER_CELL)
    assert held.table is None or held.unsorted is None
    assert [one.tolist() for one in found.histogram.to_counts()] == [
        one.tolist() for one in wanted.histogram.to_counts()
    ]  # type: ignore[union-attr]
    assert found.value.tobytes() == wanted.value.tobytes()


@pytest.mark.parametrize(
    "field", [HEADS, TOKENS, Field(("layer", "k"), "ids", is_categorical=True)], ids=["heads", "tokens", "names"]
)
def test_numbers_of_another_device_are_the_same(field: Field) -> None:
    x = torch.randn(6, 2, 3, generator=torch.Generator().manual_seed(0))
    x[2, 1] = torch.nan
    x = x if not field.is_categorical else (9 * x).nan_to_num().int()
    here = Cells.join([reduce_to_cells(x[:4], field), None, reduce_to_cells(x[4:], field)], [4, 1, 2]).to_host()
    with elsewhere():
        away = Cells.join(
            [reduce_to_cells(part.to(AWAY), field) if len(part) else None for part in (x[:4], x[:0], x[4:])], [4, 1, 2]
        )
        away = away.to_host()
    for part in fields(Cells):
        one, other = (
            x.to_counts() if isinstance(x, Histogram) else x
            for x in (getattr(cells, part.name) for cells in (here, away))
        )
        if isinstance(one, np.ndarray | tuple) and part.name not in ("kept", "dims"):
            assert all(
                a.tobytes() == b.tobytes() for a, b in zip(np.atleast_1d(one), np.atleast_1d(other), strict=True)
            )
        else:
            assert one == other
