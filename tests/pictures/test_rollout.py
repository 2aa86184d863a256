"""The picture of rollout beside the derivative."""

import pytest

from tests.pictures.cases import drawn, found, lines


def test_rollout_and_derivative_stand_token_by_token() -> None:
    dataset = found("rollout")
    shares, against = drawn("rollout").panels
    assert lines(shares)["derivative"].y == pytest.approx(dataset.jacobian.values)
    assert len(against.marks) == int(((dataset.rollout > 0) & (dataset.jacobian > 0)).sum()) - 1  # all but the query
    assert f"{float(dataset.correlation_null):.3g}" in drawn("rollout").caption
