"""Attention patching: the derivative at 0 is the prediction, small steps against the gradient help, nothing else changes."""

import pytest
import torch

import rheoscope as rs
from tests.cases import default, double, model, text, traced
from tests.laws.every_analysis import ODD, SORTS

F64 = torch.float64
WEIGHED = ["own_metric", "own_sigmoid", "own_sink", "own_sinkhorn", "own_linear", "own_relation", "own_branch_post"]
"""Other scores, weights that add up to anything, or in columns too, or without softmax; both branches scaled."""
SOME = [*SORTS, *ODD, "opt_post", *WEIGHED]


@pytest.mark.parametrize("name", SOME)
def test_the_derivative_at_0_is_the_sum_of_the_slopes(name: str) -> None:
    of, trace = double(name), traced(name, F64)
    for heads in (None, [(0, 1), (1, 2)]):
        size = 1e-3
        slope = float(rs.attention_patching(of, trace, 7, (), heads).slope.sum())
        step = size / max(abs(slope), 1e-3)
        found = rs.attention_patching(of, trace, 7, (-step, 0.0, step), heads)
        assert float(found.loss[2] - found.loss[0]) / (2 * step) == pytest.approx(slope, rel=2e-2, abs=1e-7)
        assert found.predicted_loss.values == pytest.approx(found.loss.values, abs=0.1 * size + 1e-6)
        assert float(found.loss[1]) == pytest.approx(float(-trace.logits[-1].log_softmax(-1)[7]), abs=1e-9)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "neox", "bert"])
def test_small_steps_against_the_gradient_lower_the_loss(name: str) -> None:
    of, trace = double(name), traced(name, F64)
    for target in (3, 20):
        found = rs.attention_patching(of, trace, target, (0.0,))
        slope = float(found.slope.sum())
        assert bool((found.slope >= -1e-12).all())
        assert slope > 0
        falls = []
        for lost in (1e-3, 5e-4):  # nats, to first order
            found = rs.attention_patching(of, trace, target, (-lost / slope, 0.0))
            fallen = float(found.loss[1] - found.loss[0])
            assert fallen == pytest.approx(lost, rel=0.1)
            falls.append(abs(fallen / lost - 1))
        assert falls[1] <= 0.6 * falls[0] + 2e-3  # what the first order leaves out is of the second


def test_the_patch_by_hand_and_only_in_the_chosen_head() -> None:
    of, trace = double("llama"), traced("llama", F64)
    R, A = rs.reversed_map(of, trace, 1, 2, target=5), trace.weights(1, 2)
    logits = of.run(text(), edit={(1, 2): lambda q, k, v, mechanism: (A + 0.4 * R) @ v})
    found = rs.attention_patching(of, trace, 5, (0.4,), [(1, 2)])
    assert float(found.loss[0]) == pytest.approx(float(-logits[-1].log_softmax(-1)[5].detach()), abs=1e-9)
    assert int((found.slope != 0).sum()) == 1


def test_the_model_is_as_before_and_mistakes_are_told() -> None:
    of, trace = model("gpt2"), traced("gpt2")
    rs.attention_patching(of, trace, 5, (0.4,))
    assert torch.equal(of.run(text()), trace.logits)
    with pytest.raises(rs.RheoscopeError, match="there is no head 9 in layer 0"):
        rs.attention_patching(of, trace, 5, heads=[(0, 9)])
    with pytest.raises(rs.RheoscopeError, match=r"list of \(layer, head\), got 1; type"):
        rs.attention_patching(of, trace, 5, heads=1)
    with pytest.raises(rs.RheoscopeError, match="token ids lie in 0 to 39, got 99"):
        rs.attention_patching(of, trace, 99)
    with pytest.raises(rs.RheoscopeError, match="the target must be one token"):
        rs.attention_patching(default(), default().trace("The keys"), " cabinet")
