"""Dropped weights: softmax on average, zero or scaled up one by one, the same law by every lowering that takes it."""

from dataclasses import replace

import pytest
import torch

import rheoscope as rs
from rheoscope.attention.normaliser.dropped import Dropped

DOT = replace(rs.mechanism("scaled_dot"), normaliser=Dropped(0.25))


def test_each_weight_is_dropped_or_scaled_up() -> None:
    torch.manual_seed(0)
    q = torch.randn(1, 2, 64, 8)
    plain, some = rs.mechanism("scaled_dot").weights(q, q, "causal"), DOT.weights(q, q, "causal")
    there = plain > 0
    kept = (some > 0) & there
    assert torch.allclose(some[kept], plain[kept] / 0.75)
    assert float(some[~there].abs().max()) == 0
    assert abs(float(kept.sum() / there.sum()) - 0.75) < 0.03


@pytest.mark.parametrize("lowering", ["sdpa", "reference"])
@pytest.mark.parametrize("name", ["scaled_dot", "metric"])
def test_on_average_it_is_softmax(lowering: str, name: str) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 12, 8, dtype=torch.float64).unbind(0)
    plain = rs.mechanism(name)
    dropped = replace(plain, normaliser=Dropped(0.25))
    draws = dropped(*(x.expand(3000, -1, -1, -1) for x in (q, k, v)), mask="causal", lowering=lowering)
    assert float((draws.mean(0) - plain(q, k, v, mask="causal")[0]).abs().max()) < 0.12
    assert float(draws.std(0)[..., 1:, :].min()) > 0


def test_a_share_of_0_changes_nothing() -> None:
    q = torch.randn(1, 1, 5, 4)
    assert torch.equal(replace(DOT, normaliser=Dropped(0.0))(q, q, q), rs.mechanism("scaled_dot")(q, q, q))


def test_rows_are_never_computed_twice() -> None:
    """Blocks compute rows again in the backward pass and would draw other weights: they are not taken."""
    q = torch.randn(1, 1, 300, 4)
    choice = replace(rs.mechanism("additive", dim=4), normaliser=Dropped(0.1)).explain(q, q, q)
    assert choice.name == "reference"


def test_it_has_no_gradient_in_closed_form_and_no_share_of_1() -> None:
    q = torch.randn(1, 1, 3, 4)
    with pytest.raises(rs.RheoscopeError, match="no gradient in closed form"):
        rs.attention_gradients(DOT, q, q, q, q)
    with pytest.raises(rs.RheoscopeError, match=r"lies in \[0, 1\), got 1.0; type Dropped\(0.1\)"):
        Dropped(1.0)
