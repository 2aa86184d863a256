"""Tests of the picture of `rollout`."""

import pytest

from tests.pictures.cases import example_picture, example_result, lines


def test_both_shares_are_shown_for_every_token() -> None:
    dataset = example_result("rollout")
    shares, scatter = example_picture("rollout").panels
    assert lines(shares)["derivative"].y == pytest.approx(dataset.jacobian.values)
    assert (
        len(scatter.marks) == int(((dataset.rollout > 0) & (dataset.jacobian > 0)).sum()) - 1
    )  # without the token itself
    assert f"{float(dataset.correlation_null):.3g}" in example_picture("rollout").caption
