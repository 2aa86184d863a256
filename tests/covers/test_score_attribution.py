"""Score attribution: contributions sum to the model's own score for every family, equal a slow sum, and find what was planted."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.covers.scores.analysis import allowed_pairs
from rheoscope.space.components import components
from tests.cases import double, ours, random, text, theirs, traced
from tests.laws.moves import move_key_bias, moved

F64 = torch.float64
DOT = [*theirs.EVERY, *ours.DOT]


@pytest.mark.parametrize("name", DOT)
def test_contributions_sum_to_the_score_and_to_the_pattern(name: str) -> None:
    trace = traced(name, F64)
    for layer, head in ((0, 0), (trace.view.layers - 1, trace.view.heads - 1)):
        s, w, heads = trace.scores(layer, head), trace.weights(layer, head), trace.view.heads_of(layer)
        capped = "SoftCap" in type(heads.mechanism.score).__name__
        one = rs.score_attribution(trace, layer, head, query=5, key=2)
        assert float(one.contribution.sum() + one.position_bias) == pytest.approx(float(one.score), rel=1e-6, abs=1e-9)
        assert float(one.weight) == pytest.approx(float(w[5, 2]), abs=1e-12)
        if not capped:
            assert float(one.score) == pytest.approx(float(s[5, 2]), rel=1e-4, abs=1e-5)  # float32 islands of rotations
            allowed = allowed_pairs(heads, len(trace), s.device)
            looking = [i for i in range(len(trace)) if float(w[i].sum()) > 0]
            rows = [(w[i] * s[i])[allowed[i]].sum() / w[i].sum() - s[i][allowed[i]].mean() for i in looking]
            whole = rs.score_attribution(trace, layer, head)
            assert float(whole.score) == pytest.approx(float(torch.stack(rows).sum()) / len(trace), rel=1e-4, abs=1e-5)


def test_a_contribution_is_the_form_between_two_components() -> None:
    trace = traced("gpt2", F64)
    view, layer, head = trace.view, 1, 2
    found = rs.score_attribution(trace, layer, head, query=6, key=3)
    made, norm = components(trace, trace.steps[trace.input_steps[layer]], [6, 3]), view.layer_heads[layer].norm
    x = trace.layer_input(layer)[[6, 3]]
    hats = norm.centre(made.parts) * norm.scale(x)
    M = view.head(layer, head).M.dense()
    slow = hats[:, 0] @ M @ hats[:, 1].mT
    np.testing.assert_allclose(found.contribution.values[:-1, :-1], slow.detach().numpy(), atol=1e-10)
    assert found["from"].values.tolist() == [*made.names, "bias"]


def test_a_planted_component_makes_the_score() -> None:
    model = rs.load()
    trace = model.trace("The keys to the cabinet are on the table")
    found = rs.score_attribution(trace, 3, 0, query=8, key=4)
    assert "L2.mlp" in found["from"].values
    assert "L3.mlp" not in found["from"].values  # nothing that comes later
    points = trace.points.clone()
    at = trace.input_steps[3]
    # the last step before layer 3 is its MLP's
    points[at, 8] += 50 * random(0, 256).float() - 0.5 * points[at, 8]
    pushed = rs.score_attribution(replace(trace, points=points), 3, 0, query=8, key=4)
    strongest = abs(pushed.contribution).sum("to")
    assert strongest["from"].values[int(np.argmax(strongest.values))] == "L2.mlp"


@pytest.mark.parametrize("name", ["gpt2", "own_biased", "opt"])
def test_a_shift_of_the_keys_bias_moves_one_column_alike_for_all_keys(name: str) -> None:
    """What softmax cannot see: every other move of the battery leaves a score's contributions alone, and this one a pattern's."""
    gaps = []
    for key in (1, 4):
        one, other = (
            rs.score_attribution(model.trace(text()), 1, 2, query=6, key=key)
            for model in (double(name), moved(name, move_key_bias))
        )
        gaps.append(other.contribution.values - one.contribution.values)
    assert np.abs(gaps[0][:, :-1]).max() <= 1e-6
    assert np.abs(gaps[0][:, -1]).max() > 1e-3
    np.testing.assert_allclose(gaps[0], gaps[1], atol=1e-6)


def test_layers_and_tokens_count_from_the_end_too() -> None:
    trace = traced("gpt2", F64)
    assert rs.score_attribution(trace).identical(rs.score_attribution(trace, 1, 0))
    one, other = rs.score_attribution(trace, -2, 3, -1, -4), rs.score_attribution(trace, 0, 3, 17, 14)
    assert one.identical(other)
    with pytest.raises(rs.RheoscopeError, match="there is no layer -3; this model has layers 0 to 1"):
        rs.score_attribution(trace, -3)


def test_what_cannot_be_asked_is_told_in_one_line() -> None:
    model = rs.load()
    trace = model.trace("The keys to the cabinet")
    with pytest.raises(rs.RheoscopeError, match="token 1 may not look at token 3; type a key that comes no later"):
        rs.score_attribution(trace, 0, 0, query=1, key=3)
    with pytest.raises(rs.RheoscopeError, match="a score has a query and a key; type both"):
        rs.score_attribution(trace, 0, 0, query=1)
    with pytest.raises(rs.RheoscopeError, match="there is no token 99"):
        rs.score_attribution(trace, 0, 0, query=99, key=0)
    cosine = traced("own_cosine", F64)
    with pytest.raises(rs.RheoscopeError, match="no scaled dot products"):
        rs.score_attribution(cosine, 0, 0, query=1, key=0)
