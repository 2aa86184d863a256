"""Numbers as people read them: no sign of a zero, no zero before a point, never more than four signs."""

import math

import pytest

from rheoscope.messages.numbers import format_number


@pytest.mark.parametrize("value", [0.0, -1e-9, 0.004999, -0.5, 0.996, 1.0, 1.9999, 2.0, -2.5, 99.96, 100.4, -12345.6])
def test_a_number_reads_back_to_its_places(value: float) -> None:
    assert float(format_number(value)) == pytest.approx(
        value, abs=0.5 if abs(value) >= 100 else 0.05 if abs(value) >= 2 else 0.005
    )
    assert not format_number(value).startswith(("0.", "-0"))


def test_what_is_no_number() -> None:
    assert format_number(math.nan) == "none"
    assert format_number(math.inf) == "∞"
