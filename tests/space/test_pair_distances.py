"""Distances and cosines from inner products equal direct computation, and are exact for equal points."""

import numpy as np
import pytest
import torch

from rheoscope.space.pair_distances import centred_inner_products, cosines, distances, pair_numbers, upper_triangle
from tests.cases import random


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distances_are_exact_and_zero_for_equal_points(dtype: torch.dtype) -> None:
    x = (random(0, 20, 30) + 3).to(dtype)
    x[7] = x[3]
    result = distances(centred_inner_products(x))
    expected = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    np.testing.assert_allclose(result.numpy(), expected.numpy(), atol=1e-3 if dtype is torch.float32 else 1e-9)
    assert float(result[3, 7]) == 0
    assert int((result == 0).sum()) == 22


def test_shifting_the_cloud_changes_no_distance() -> None:
    x = random(1, 12, 5)
    original, shifted = (distances(centred_inner_products(y)) for y in (x, x + 1e4))
    assert float((original - shifted).abs().max()) <= 1e-6


def test_cosines_equal_a_loop_and_are_1_at_the_origin() -> None:
    x = random(2, 8, 3)
    x[[1, 5]] = 0
    result = cosines(x @ x.mT)
    for i in range(8):
        for j in range(8):
            at_origin = {i, j} & {1, 5}
            cosine_at_origin = 1.0 if {i, j} <= {1, 5} else 0.0
            expected = cosine_at_origin if at_origin else float(x[i] @ x[j] / x[i].norm() / x[j].norm())
            assert float(result[i, j]) == pytest.approx(expected, abs=1e-12)


def test_batched_clouds_equal_single_clouds() -> None:
    x = random(3, 4, 6, 5)
    for function in (distances, cosines):
        batched = function(centred_inner_products(x))
        for i in range(4):
            assert torch.allclose(batched[i], function(centred_inner_products(x[i])))


def test_pair_numbers_index_the_upper_triangle_in_either_order() -> None:
    table = torch.arange(25.0).reshape(5, 5)
    pairs = upper_triangle(table)
    for i in range(5):
        for j in range(i + 1, 5):
            for first, second in ((i, j), (j, i)):
                assert pairs[pair_numbers(torch.tensor(first), torch.tensor(second), 5)] == table[i, j]
