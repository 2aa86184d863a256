"""Tests of comparisons, their gaps, and the Dataset of an experiment."""

import math

import pytest
import torch

from rheoscope.theory.predictions import Comparison, as_dataset


@pytest.mark.parametrize(
    ("value", "expected", "gap"), [(3.0, 2.0, 0.5), (-3.0, -2.0, 0.5), (0.3, 0.0, 0.3), (1.0, -1.0, 2.0)]
)
def test_gap_is_relative_but_absolute_at_zero(value: float, expected: float, gap: float) -> None:
    assert Comparison("x", value, expected, "").gap == pytest.approx(gap)


def test_gap_of_nan_is_nan() -> None:
    assert math.isnan(Comparison("x", float("nan"), 1.0, "").gap)


def test_dataset_has_comparisons_contrasts_curves_and_settings() -> None:
    comparisons = [Comparison("a", 1.0, 2.0, "published"), Comparison("b", 3.0, 3.0, "derived")]
    curve = {"line": (("time",), torch.arange(3.0))}
    dataset = as_dataset(comparisons, curve, {"line": "a line"}, {"time": [0, 1, 2]}, {"n": 5}, {"other": 9.0})
    assert dataset.gap.values.tolist() == [0.5, 0.0]
    assert dataset.why.sel(quantity="b").item() == "derived"
    assert float(dataset.contrast.sel(rule="other")) == 9
    assert dataset.line.attrs["definition"] == "a line"
    assert dataset.attrs == {"n": 5}
    assert "contrast" not in as_dataset(comparisons, curve, {"line": "a line"}, {}, {})
