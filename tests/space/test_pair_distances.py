"""All pairs from inner products: equal to differences and to a loop, exact where points are equal."""

import numpy as np
import pytest
import torch

from rheoscope.space.pair_distances import cosines, distances, inner_products
from tests.cases import random


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distances_are_exact_and_equal_points_are_at_0(dtype: torch.dtype) -> None:
    x = (random(0, 20, 30) + 3).to(dtype)
    x[7] = x[3]
    far = distances(inner_products(x))
    wanted = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    np.testing.assert_allclose(far.numpy(), wanted.numpy(), atol=1e-3 if dtype is torch.float32 else 1e-9)
    assert float(far[3, 7]) == 0
    assert int((far == 0).sum()) == 22


def test_a_shift_of_the_cloud_changes_no_distance() -> None:
    x = random(1, 12, 5)
    far, shifted = (distances(inner_products(y)) for y in (x, x + 1e4))
    assert float((far - shifted).abs().max()) <= 1e-6


def test_cosines_equal_a_loop_and_points_at_the_origin_are_alike() -> None:
    x = random(2, 8, 3)
    x[[1, 5]] = 0
    found = cosines(x @ x.mT)
    for i in range(8):
        for j in range(8):
            still = {i, j} & {1, 5}
            alone = 1.0 if {i, j} <= {1, 5} else 0.0
            wanted = alone if still else float(x[i] @ x[j] / x[i].norm() / x[j].norm())
            assert float(found[i, j]) == pytest.approx(wanted, abs=1e-12)


def test_several_clouds_at_a_time() -> None:
    x = random(3, 4, 6, 5)
    for table in (distances, cosines):
        together = table(inner_products(x))
        for at in range(4):
            assert torch.allclose(together[at], table(inner_products(x[at])))
