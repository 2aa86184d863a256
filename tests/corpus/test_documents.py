"""Standard errors by document: equal to the formula, bit-identical for any split, and calibrated."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rheoscope.corpus.documents import Documents, document_sums, standard_error
from rheoscope.corpus.segments import MAX_SEGMENTS
from rheoscope.statistics.exact_sums import exact_sums
from tests.corpus.test_summaries import identical_bits

SIZES = st.lists(st.integers(1, 5), min_size=2, max_size=7)
VALUE = st.floats(-1e6, 1e6, width=32) | st.just(float("nan"))


def sums(ids: np.ndarray, x: np.ndarray) -> tuple[list[int], list[int], Documents]:
    """The sums over texts and over documents of numbers (text, cell)."""
    is_finite = np.isfinite(x)
    cell = np.broadcast_to(np.arange(x.shape[1]), x.shape)
    total, squares = exact_sums(x[is_finite], cell[is_finite], x.shape[1])
    return total, squares, document_sums(ids, x, total, squares)


def error(ids: np.ndarray, x: np.ndarray) -> float:
    total, _, documents = sums(ids, x[:, None])
    texts = int(np.isfinite(x).sum())
    return standard_error(
        total[0], texts, int(documents.count[0]), int(documents.sizes[0]), documents.squares[0], documents.products[0]
    )


def texts_of(sizes: list[int]) -> np.ndarray:
    return np.array([document * MAX_SEGMENTS + piece for document, size in enumerate(sizes) for piece in range(size)])


@given(SIZES, st.data())
@settings(max_examples=40)
def test_the_standard_error_equals_the_formula(sizes: list[int], data: st.DataObject) -> None:
    ids = texts_of(sizes)
    x = np.array(data.draw(st.lists(VALUE, min_size=len(ids), max_size=len(ids))), np.float32)
    is_finite = np.isfinite(x)
    document, y = ids[is_finite] // MAX_SEGMENTS, x[is_finite].astype(np.float64)
    document_ids = np.unique(document)
    if len(document_ids) < 2:
        assert np.isnan(error(ids, x))
        return
    deviations = np.array([(y[document == name] - y.mean()).sum() for name in document_ids])
    expected = np.sqrt((deviations**2).sum() * len(document_ids) / (len(document_ids) - 1)) / len(y)
    assert error(ids, x) == pytest.approx(expected, rel=1e-4, abs=1e-6 * np.abs(y).max(initial=0))


@given(st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=8), st.integers(1, 4))
@settings(max_examples=30)
def test_repeating_texts_does_not_shrink_the_error(values: list[float], repetitions: int) -> None:
    """With each text k times, the error stays s/√n and does not become s/√(kn)."""
    x = np.array(values, np.float32)
    expected = float(np.std(x.astype(np.float64), ddof=1) / np.sqrt(len(x)))
    result = error(texts_of([repetitions] * len(x)), np.repeat(x, repetitions))
    assert result == pytest.approx(expected, rel=1e-5, abs=1e-5)


@given(SIZES, st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=30)
def test_merged_documents_are_independent_of_split_and_order(
    sizes: list[int], rng: random.Random, is_huge: bool
) -> None:
    ids = texts_of(sizes)
    x = np.array([[rng.gauss(0, 1) * (3e38 if is_huge else 1.0) for _ in range(2)] for _ in ids]).clip(-3e38, 3e38)
    x = x.astype(np.float32)
    x[rng.randrange(len(x)), 0] = np.nan
    expected = sums(ids, x)[2]
    shuffled = np.array(rng.sample(range(len(ids)), len(ids)))
    assert identical_bits(sums(ids[shuffled], x[shuffled])[2], expected)
    first_documents = rng.sample(range(len(sizes)), rng.randint(1, len(sizes) - 1))
    is_first = np.isin(ids // MAX_SEGMENTS, first_documents)
    assert identical_bits(
        Documents.merge([sums(ids[~is_first], x[~is_first])[2], sums(ids[is_first], x[is_first])[2]]), expected
    )


def test_errors_account_for_similar_segments_of_a_document() -> None:
    """Half of the variance is between documents.

    The error matches the spread of means; that of independent texts is too small.
    """
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 12, 60)
    ids = texts_of(sizes.tolist())
    values = np.repeat(rng.standard_normal((60, 400)), sizes, 0) + rng.standard_normal((len(ids), 400))
    x = values.astype(np.float32)
    total, _, documents = sums(ids, x)
    cells = zip(
        total, documents.count.tolist(), documents.sizes.tolist(), documents.squares, documents.products, strict=True
    )
    errors = np.array([standard_error(cell[0], len(ids), *cell[1:]) for cell in cells])
    assert np.mean(errors) == pytest.approx(x.mean(0).std(), rel=0.1)
    assert (x.std(0) / np.sqrt(len(ids))).mean() < 0.6 * x.mean(0).std()
