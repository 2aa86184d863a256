"""Tests of best keys and of counting groups of values."""

import pytest
import torch

from rheoscope.theory.free_space import best_keys, count_groups, self_match_ratio


def test_only_corners_are_their_own_best_keys() -> None:
    z = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [0.5, 0.2]], dtype=torch.float64)
    assert self_match_ratio(z)[:4].tolist() == [1, 1, 1, 1]
    assert float(self_match_ratio(z)[4]) == pytest.approx((0.25 + 0.04) / 0.7)
    assert best_keys(z)[4].tolist() == [1, 1]


@pytest.mark.parametrize(("values", "count"), [([1.0, 1.0, 1.01], 1), ([0.0, 1.0, 1.0], 2), ([3.0, -1.0, 1.0, 3.0], 3)])
def test_count_groups_counts_separated_values(values: list[float], count: int) -> None:
    tensor = torch.tensor([*values, -100.0 if len(values) == 3 and count == 1 else values[0]], dtype=torch.float64)
    assert count_groups(tensor) == count + (-100.0 in tensor.tolist())
