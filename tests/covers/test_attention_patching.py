"""Attention patching: the derivative at 0, the sign of the slopes, a patch by hand, and errors."""

import numpy as np
import pytest
import torch

import rheoscope as rs
from tests.cases import default, double, model, text, traced
from tests.laws.every_analysis import ODD, SORTS

F64 = torch.float64
OTHER_MECHANISMS = [
    "own_metric",
    "own_sigmoid",
    "own_sink",
    "own_sinkhorn",
    "own_linear",
    "own_relation",
    "own_branch_post",
]
"""Mechanisms with other scores or normalisers, and a post-norm model with scaled branches."""
SOME = [*SORTS, *ODD, "opt_post", *OTHER_MECHANISMS]
CHOSEN = [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("name", "heads"), [*((name, None) for name in SOME), *((name, CHOSEN) for name in ("llama", "bert", "own_metric"))]
)
def test_the_derivative_at_0_is_the_sum_of_the_slopes(name: str, heads: list[tuple[int, int]] | None) -> None:
    network, trace, size = double(name), traced(name, F64), 1e-3
    slope = float(rs.attention_patching(network, trace, 7, (), heads).slope.sum())
    step = size / max(abs(slope), 1e-3)
    result = rs.attention_patching(network, trace, 7, (-step, 0.0, step), heads)
    assert float(result.loss[2] - result.loss[0]) / (2 * step) == pytest.approx(slope, rel=2e-2, abs=1e-7)
    assert result.predicted_loss.values == pytest.approx(result.loss.values, abs=0.1 * size + 1e-6)
    assert float(result.loss[1]) == pytest.approx(float(-trace.logits[-1].log_softmax(-1)[7]), abs=1e-9)


@pytest.mark.parametrize(("name", "target"), [("gpt2", 3), ("llama", 20), ("gemma3", 3), ("neox", 20), ("bert", 3)])
def test_small_steps_against_the_gradient_lower_the_loss(name: str, target: int) -> None:
    network, trace = double(name), traced(name, F64)
    result = rs.attention_patching(network, trace, target, ())
    slope = float(result.slope.sum())
    assert bool((result.slope >= -1e-12).all())
    assert slope > 0
    predicted_decreases = np.array([1e-3, 5e-4])  # nats
    result = rs.attention_patching(network, trace, target, (*(-predicted_decreases / slope), 0.0))
    decreases = result.loss.values[2] - result.loss.values[:2]
    assert decreases == pytest.approx(predicted_decreases, rel=0.1)
    errors = abs(decreases / predicted_decreases - 1)
    assert errors[1] <= 0.6 * errors[0] + 2e-3  # the error of the prediction is of second order


def test_a_patched_head_equals_an_edit_by_hand() -> None:
    network, trace = double("llama"), traced("llama", F64)
    R, A = rs.reversed_map(network, trace, 1, 2, target=5), trace.weights(1, 2)
    logits = network.run(text(), edit={(1, 2): lambda q, k, v, mechanism: (A + 0.4 * R) @ v})
    result = rs.attention_patching(network, trace, 5, (0.4,), [(1, 2)])
    assert float(result.loss[0]) == pytest.approx(float(-logits[-1].log_softmax(-1)[5].detach()), abs=1e-9)
    assert int((result.slope != 0).sum()) == 1


def test_the_model_is_restored() -> None:
    network, trace = model("gpt2"), traced("gpt2")
    rs.attention_patching(network, trace, 5, (0.4,))
    assert torch.equal(network.run(text()), trace.logits)


def test_invalid_heads_and_targets_are_refused() -> None:
    network, trace = model("gpt2"), traced("gpt2")
    with pytest.raises(rs.RheoscopeError, match="there is no head 9 in layer 0"):
        rs.attention_patching(network, trace, 5, heads=[(0, 9)])
    with pytest.raises(rs.RheoscopeError, match=r"list of \(layer, head\), got 1; type"):
        rs.attention_patching(network, trace, 5, heads=1)
    with pytest.raises(rs.RheoscopeError, match="token ids lie in 0 to 39, got 99"):
        rs.attention_patching(network, trace, 99)
    with pytest.raises(rs.RheoscopeError, match="the target must be one token"):
        rs.attention_patching(default(), default().trace("The keys"), " cabinet")
