"""Numbers and their gaps, and experiments as Datasets."""

import math

import pytest
import torch

from rheoscope.theory.predictions import Comparison, as_dataset


@pytest.mark.parametrize(
    ("value", "expected", "gap"), [(3.0, 2.0, 0.5), (-3.0, -2.0, 0.5), (0.3, 0.0, 0.3), (1.0, -1.0, 2.0)]
)
def test_gaps_are_relative_and_absolute_at_zero(value: float, expected: float, gap: float) -> None:
    assert Comparison("x", value, expected, "").gap == pytest.approx(gap)


def test_a_number_that_is_not_there_has_no_gap() -> None:
    assert math.isnan(Comparison("x", float("nan"), 1.0, "").gap)


def test_a_dataset_holds_numbers_contrasts_curves_and_settings() -> None:
    numbers = [Comparison("a", 1.0, 2.0, "said"), Comparison("b", 3.0, 3.0, "derived")]
    curve = {"line": (("time",), torch.arange(3.0))}
    made = as_dataset(numbers, curve, {"line": "a line"}, {"time": [0, 1, 2]}, {"n": 5}, {"other": 9.0})
    assert made.gap.values.tolist() == [0.5, 0.0]
    assert made.why.sel(quantity="b").item() == "derived"
    assert float(made.contrast.sel(rule="other")) == 9
    assert made.line.attrs["definition"] == "a line"
    assert made.attrs == {"n": 5}
    assert "contrast" not in as_dataset(numbers, curve, {"line": "a line"}, {}, {})
