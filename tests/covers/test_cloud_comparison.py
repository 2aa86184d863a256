"""The geometry of clouds equals slow references and is invariant under rotations, shifts and scales."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist, squareform
from scipy.stats import spearmanr

from rheoscope.covers.cloud_comparison import (
    PRESERVATION_FIELDS,
    compare_geometries,
    geometry,
    rsa_standard_error,
)
from rheoscope.covers.preservation import preservation
from rheoscope.statistics.nulls import sample_rows
from tests.pretrained.cases import random


def slow_scores(x: np.ndarray, y: np.ndarray, k: int) -> list[float]:
    """The definitions as loops."""
    a, b, n = squareform(pdist(x)), squareform(pdist(y)), len(x)

    def near(d: np.ndarray, i: int) -> list[int]:
        return sorted((j for j in range(n) if j != i), key=lambda j: d[i, j])

    stretch = np.sort(pdist(y) / pdist(x))
    shared = np.mean([len({*near(a, i)[:k]} & {*near(b, i)[:k]}) / k for i in range(n)])

    def rank_score(reference: np.ndarray, image: np.ndarray) -> float:
        excess = sum(max(0, near(reference, i).index(j) + 1 - k) for i in range(n) for j in near(image, i)[:k])
        return 1 - 2 / (n * k * (2 * n - 3 * k - 1)) * excess

    X, Y = x - x.mean(0), y - y.mean(0)
    cka = np.linalg.norm(X.T @ Y) ** 2 / np.linalg.norm(X.T @ X) / np.linalg.norm(Y.T @ Y)
    low, high = (stretch[round(quantile * (len(stretch) - 1))] for quantile in (0.05, 0.95))
    return [high / low, shared, rank_score(a, b), rank_score(b, a), spearmanr(pdist(x), pdist(y)).statistic, cka]


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), n=st.integers(8, 20), k=st.integers(1, 3))
def test_scores_equal_a_slow_reference(seed: int, n: int, k: int) -> None:
    x, y = random(seed, n, 6), random(seed + 1, n, 3)
    scores = compare_geometries(geometry(x), geometry(y), k)
    assert np.allclose(scores, slow_scores(x.numpy(), y.numpy(), k), atol=1e-9)


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), scale=st.floats(0.01, 100))
def test_a_similarity_transformation_preserves_everything(seed: int, scale: float) -> None:
    x, Q = random(seed, 15, 5), torch.linalg.qr(random(seed + 1, 5, 5))[0]
    scores = compare_geometries(geometry(x), geometry(scale * x @ Q + random(seed + 2, 5)), 3)
    assert np.allclose(scores, 1, atol=1e-9)


def test_equal_tokens_are_ordered_by_position_and_have_no_stretch() -> None:
    x = random(0, 12, 4)
    x[7] = x[3]
    y = x.clone()
    y[7] += 1
    scores = dict(zip(PRESERVATION_FIELDS, compare_geometries(geometry(x), geometry(y), 3).tolist(), strict=True))
    assert np.isfinite(scores["spread"])
    neighbour_ranks = geometry(x).neighbour_ranks
    assert bool((neighbour_ranks[:, 3] < neighbour_ranks[:, 7])[[i for i in range(12) if i not in (3, 7)]].all())
    assert float(geometry(x).pair_distances.min()) == 0
    point = compare_geometries(geometry(x), geometry(torch.zeros(12, 1)), 3)
    assert point[4:].tolist() == [0, 0]


def test_a_collapsed_cloud_has_an_infinite_spread() -> None:
    x = random(0, 12, 4)
    assert float(compare_geometries(geometry(x), geometry(x * torch.tensor([0.0, 0, 0, 1])), 3)[0]) > 3
    y = torch.zeros(12, 1)
    y[0] = 1
    assert float(compare_geometries(geometry(x), geometry(y), 3)[0]) == pytest.approx(float("inf"))


# Sampled rows


def slow_row_scores(x: np.ndarray, y: np.ndarray, k: int, rows: list[int]) -> list[float]:
    """The definitions over pairs that contain a row, and over the neighbours of rows."""
    a, b, n = squareform(pdist(x)), squareform(pdist(y)), len(x)
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n) if i in rows or j in rows]
    distances_x, distances_y = (np.array([d[i, j] for i, j in pairs]) for d in (a, b))

    def near(d: np.ndarray, i: int) -> list[int]:
        return sorted((j for j in range(n) if j != i), key=lambda j: d[i, j])

    shared = np.mean([len({*near(a, i)[:k]} & {*near(b, i)[:k]}) / k for i in rows])
    excess = sum(max(0, near(a, i).index(j) + 1 - k) for i in rows for j in near(b, i)[:k])
    trust = 1 - 2 / (len(rows) * k * (2 * n - 3 * k - 1)) * excess
    return [shared, trust, spearmanr(distances_x, distances_y).statistic]


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), n=st.integers(8, 20), m=st.integers(2, 7))
def test_scores_of_sampled_rows_equal_a_slow_reference(seed: int, n: int, m: int) -> None:
    x, y, rows = random(seed, n, 6), random(seed + 1, n, 3), sample_rows(n, m, seed)
    scores = compare_geometries(geometry(x, rows), geometry(y, rows), 2)
    assert np.allclose(scores[[1, 2, 4]], slow_row_scores(x.numpy(), y.numpy(), 2, rows.tolist()), atol=1e-9)


def test_the_standard_error_matches_the_spread_of_sampled_rows() -> None:
    """Samples of rows scatter around the value of all rows by about their standard error."""
    x = random(0, 120, 8)
    y = x @ random(1, 8, 3)
    full_value = float(preservation(geometry(x), y[None], 3)[0, PRESERVATION_FIELDS.index("rsa")])
    references = [geometry(x, sample_rows(120, 24, seed)) for seed in range(60)]
    values = torch.stack(
        [preservation(sample, y[None], 3)[0, PRESERVATION_FIELDS.index("rsa")] for sample in references]
    )
    standard_error = torch.stack([rsa_standard_error(sample, geometry(y, sample.rows)) for sample in references]).mean()
    assert abs(float(values.mean()) - full_value) < 0.02
    assert 0.6 < float(values.std() / standard_error) < 1.7
    assert float(rsa_standard_error(geometry(x), geometry(y))) == 0
