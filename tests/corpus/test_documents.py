"""How sure a mean is goes by documents: against the formula in numpy, as the same bits however documents are split, and as it covers."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rheoscope.corpus.documents import Documents, document_sums, standard_error
from rheoscope.corpus.segments import MAX_SEGMENTS
from rheoscope.statistics.exact_sums import exact_sums
from tests.corpus.test_summaries import same

SIZES = st.lists(st.integers(1, 5), min_size=2, max_size=7)
VALUE = st.floats(-1e6, 1e6, width=32) | st.just(float("nan"))


def kept(ids: np.ndarray, x: np.ndarray) -> tuple[list[int], list[int], Documents]:
    """Sums over texts, and what is kept of documents, of numbers (text, cell)."""
    there = np.isfinite(x)
    cell = np.broadcast_to(np.arange(x.shape[1]), x.shape)
    total, squares = exact_sums(x[there], cell[there], x.shape[1])
    return total, squares, document_sums(ids, x, total, squares)


def error(ids: np.ndarray, x: np.ndarray) -> float:
    total, _, one = kept(ids, x[:, None])
    texts = int(np.isfinite(x).sum())
    return standard_error(total[0], texts, int(one.count[0]), int(one.sizes[0]), one.squares[0], one.products[0])


def texts_of(sizes: list[int]) -> np.ndarray:
    return np.array([document * MAX_SEGMENTS + piece for document, size in enumerate(sizes) for piece in range(size)])


@given(SIZES, st.data())
@settings(max_examples=40)
def test_it_is_the_formula(sizes: list[int], data: st.DataObject) -> None:
    ids = texts_of(sizes)
    x = np.array(data.draw(st.lists(VALUE, min_size=len(ids), max_size=len(ids))), np.float32)
    there = np.isfinite(x)
    document, y = ids[there] // MAX_SEGMENTS, x[there].astype(np.float64)
    names = np.unique(document)
    if len(names) < 2:
        assert np.isnan(error(ids, x))
        return
    off = np.array([(y[document == name] - y.mean()).sum() for name in names])
    expected = np.sqrt((off**2).sum() * len(names) / (len(names) - 1)) / len(y)
    assert error(ids, x) == pytest.approx(expected, rel=1e-4, abs=1e-6 * np.abs(y).max(initial=0))


@given(st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=8), st.integers(1, 4))
@settings(max_examples=30)
def test_saying_everything_again_makes_nothing_surer(values: list[float], again: int) -> None:
    """Each document k times its text: the error is that of documents of one text, s/√n, and not s/√(kn)."""
    x = np.array(values, np.float32)
    one = float(np.std(x.astype(np.float64), ddof=1) / np.sqrt(len(x)))
    found = error(texts_of([again] * len(x)), np.repeat(x, again))
    assert found == pytest.approx(one, rel=1e-5, abs=1e-5)


@given(SIZES, st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=30)
def test_documents_split_and_ordered_in_any_way_are_the_whole(
    sizes: list[int], draw: random.Random, huge: bool
) -> None:
    ids = texts_of(sizes)
    x = np.array([[draw.gauss(0, 1) * (3e38 if huge else 1.0) for _ in range(2)] for _ in ids]).clip(-3e38, 3e38)
    x = x.astype(np.float32)
    x[draw.randrange(len(x)), 0] = np.nan
    whole = kept(ids, x)[2]
    shuffled = np.array(draw.sample(range(len(ids)), len(ids)))
    assert same(kept(ids[shuffled], x[shuffled])[2], whole)
    first = draw.sample(range(len(sizes)), draw.randint(1, len(sizes) - 1))
    mine = np.isin(ids // MAX_SEGMENTS, first)
    assert same(Documents.merge([kept(ids[~mine], x[~mine])[2], kept(ids[mine], x[mine])[2]]), whole)


def test_intervals_cover_where_pieces_of_a_document_are_alike() -> None:
    """Half of the variance is the document's: the error is what means of such corpora spread by; that of texts is far too small."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 12, 60)
    ids = texts_of(sizes.tolist())
    draws = np.repeat(rng.standard_normal((60, 400)), sizes, 0) + rng.standard_normal((len(ids), 400))
    x = draws.astype(np.float32)
    total, _, one = kept(ids, x)
    each = zip(total, one.count.tolist(), one.sizes.tolist(), one.squares, one.products, strict=True)
    found = np.array([standard_error(cell[0], len(ids), *cell[1:]) for cell in each])
    assert np.mean(found) == pytest.approx(x.mean(0).std(), rel=0.1)
    assert (x.std(0) / np.sqrt(len(ids))).mean() < 0.6 * x.mean(0).std()
