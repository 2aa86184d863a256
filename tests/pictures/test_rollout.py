"""Tests of the picture of `rollout`."""

import pytest

from tests.pictures.cases import drawn, found, lines


def test_both_shares_are_shown_for_every_token() -> None:
    dataset = found("rollout")
    shares, scatter = drawn("rollout").panels
    assert lines(shares)["derivative"].y == pytest.approx(dataset.jacobian.values)
    assert (
        len(scatter.marks) == int(((dataset.rollout > 0) & (dataset.jacobian > 0)).sum()) - 1
    )  # without the token itself
    assert f"{float(dataset.correlation_null):.3g}" in drawn("rollout").caption
