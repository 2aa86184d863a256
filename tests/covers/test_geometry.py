"""The geometry of a cloud: equal to scipy and to slow loops, blind to turns, shifts and scales."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist, squareform
from scipy.stats import spearmanr

from rheoscope.covers.geometry import COMPARED, compared, geometry
from tests.pretrained.cases import random


def slow(x: np.ndarray, y: np.ndarray, k: int) -> list[float]:
    """The definitions, read aloud."""
    a, b, n = squareform(pdist(x)), squareform(pdist(y)), len(x)

    def near(d: np.ndarray, i: int) -> list[int]:
        return sorted((j for j in range(n) if j != i), key=lambda j: d[i, j])

    stretch = np.sort(pdist(y) / pdist(x))
    kept = np.mean([len({*near(a, i)[:k]} & {*near(b, i)[:k]}) / k for i in range(n)])

    def misplaced(one: np.ndarray, other: np.ndarray) -> float:
        far = sum(max(0, near(one, i).index(j) + 1 - k) for i in range(n) for j in near(other, i)[:k])
        return 1 - 2 / (n * k * (2 * n - 3 * k - 1)) * far

    X, Y = x - x.mean(0), y - y.mean(0)
    cka = np.linalg.norm(X.T @ Y) ** 2 / np.linalg.norm(X.T @ X) / np.linalg.norm(Y.T @ Y)
    low, high = (stretch[round(share * (len(stretch) - 1))] for share in (0.05, 0.95))
    return [high / low, kept, misplaced(a, b), misplaced(b, a), spearmanr(pdist(x), pdist(y)).statistic, cka]


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), n=st.integers(8, 20), k=st.integers(1, 3))
def test_it_equals_a_slow_twin(seed: int, n: int, k: int) -> None:
    x, y = random(seed, n, 6), random(seed + 1, n, 3)
    found = compared(geometry(x), geometry(y), k)
    assert np.allclose(found, slow(x.numpy(), y.numpy(), k), atol=1e-9)


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), scale=st.floats(0.01, 100))
def test_a_similarity_keeps_everything(seed: int, scale: float) -> None:
    x, Q = random(seed, 15, 5), torch.linalg.qr(random(seed + 1, 5, 5))[0]
    found = compared(geometry(x), geometry(scale * x @ Q + random(seed + 2, 5)), 3)
    assert np.allclose(found, 1, atol=1e-9)


def test_equal_tokens_have_no_order_and_no_stretch() -> None:
    x = random(0, 12, 4)
    x[7] = x[3]
    y = x.clone()
    y[7] += 1
    found = dict(zip(COMPARED, compared(geometry(x), geometry(y), 3).tolist(), strict=True))
    assert np.isfinite(found["spread"])
    order = geometry(x).order
    assert bool((order[:, 3] < order[:, 7])[[i for i in range(12) if i not in (3, 7)]].all())
    assert float(geometry(x).pairs.min()) == 0
    point = compared(geometry(x), geometry(torch.zeros(12, 1)), 3)
    assert point[4:].tolist() == [0, 0]


def test_a_collapsed_cloud_has_an_infinite_spread() -> None:
    x = random(0, 12, 4)
    assert float(compared(geometry(x), geometry(x * torch.tensor([0.0, 0, 0, 1])), 3)[0]) > 3
    y = torch.zeros(12, 1)
    y[0] = 1
    assert float(compared(geometry(x), geometry(y), 3)[0]) == pytest.approx(float("inf"))
