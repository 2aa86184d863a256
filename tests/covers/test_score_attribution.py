"""Tests of `score_attribution`: sums in every family, a dense reference, a planted component, shifts and refused input."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.covers.scores.analysis import allowed_pairs
from rheoscope.space.components import components
from tests.cases import double, ours, random, text, theirs, traced
from tests.laws.moves import model_after, move_key_bias

F64 = torch.float64
DOT = [*theirs.EVERY, *ours.DOT]


@pytest.mark.parametrize("name", DOT)
def test_contributions_sum_to_the_score_and_the_pattern(name: str) -> None:
    trace = traced(name, F64)
    for layer, head in ((0, 0), (trace.view.layers - 1, trace.view.heads - 1)):
        s, w, heads = trace.scores(layer, head), trace.weights(layer, head), trace.view.heads_of(layer)
        capped = "SoftCap" in type(heads.mechanism.score).__name__
        pair = rs.score_attribution(trace, layer, head, query=5, key=2)
        total = float(pair.contribution.sum() + pair.position_bias)
        assert total == pytest.approx(float(pair.score), rel=1e-6, abs=1e-9)
        assert float(pair.weight) == pytest.approx(float(w[5, 2]), abs=1e-12)
        if not capped:
            assert float(pair.score) == pytest.approx(float(s[5, 2]), rel=1e-4, abs=1e-5)  # rotations are in float32
            allowed = allowed_pairs(heads, len(trace), s.device)
            weighted_mean = torch.where(allowed, w * s, 0).sum(-1) / w.sum(-1)
            plain_mean = torch.where(allowed, s, 0).sum(-1) / allowed.sum(-1)
            expected = float((weighted_mean - plain_mean)[w.sum(-1) > 0].sum()) / len(trace)
            pattern = rs.score_attribution(trace, layer, head)
            assert float(pattern.score) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_a_contribution_is_M_applied_to_two_components() -> None:
    trace = traced("gpt2", F64)
    view, layer, head = trace.view, 1, 2
    result = rs.score_attribution(trace, layer, head, query=6, key=3)
    parts, norm = components(trace, trace.steps[trace.input_steps[layer]], [6, 3]), view.layer_heads[layer].norm
    x = trace.layer_input(layer)[[6, 3]]
    x_hat = norm.centre(parts.parts) * norm.scale(x)
    M = view.head(layer, head).M.dense()
    expected = x_hat[:, 0] @ M @ x_hat[:, 1].mT
    np.testing.assert_allclose(result.contribution.values[:-1, :-1], expected.detach().numpy(), atol=1e-10)
    assert result["from"].values.tolist() == [*parts.names, "bias"]


def test_a_planted_component_has_the_largest_contribution() -> None:
    model = rs.load()
    trace = model.trace("The keys to the cabinet are on the table")
    result = rs.score_attribution(trace, 3, 0, query=8, key=4)
    assert "L2.mlp" in result["from"].values
    assert "L3.mlp" not in result["from"].values  # not upstream
    points = trace.points.clone()
    step = trace.input_steps[3]  # written by the MLP of layer 2
    points[step, 8] += 50 * random(0, 256).float() - 0.5 * points[step, 8]
    planted = rs.score_attribution(replace(trace, points=points), 3, 0, query=8, key=4)
    sizes = abs(planted.contribution).sum("to")
    assert sizes["from"].values[int(np.argmax(sizes.values))] == "L2.mlp"


@pytest.mark.parametrize("name", ["gpt2", "own_biased", "opt"])
def test_a_shift_of_the_key_bias_changes_the_bias_column_equally_for_all_keys(name: str) -> None:
    """Softmax does not see this shift. It is the only gauge that changes contributions to a single score."""
    differences = []
    for key in (1, 4):
        original, shifted = (
            rs.score_attribution(model.trace(text()), 1, 2, query=6, key=key)
            for model in (double(name), model_after(name, move_key_bias))
        )
        differences.append(shifted.contribution.values - original.contribution.values)
    assert np.abs(differences[0][:, :-1]).max() <= 1e-6
    assert np.abs(differences[0][:, -1]).max() > 1e-3
    np.testing.assert_allclose(differences[0], differences[1], atol=1e-6)


def test_negative_layers_and_tokens_count_from_the_end() -> None:
    trace = traced("gpt2", F64)
    assert rs.score_attribution(trace).identical(rs.score_attribution(trace, 1, 0))
    assert rs.score_attribution(trace, -2, 3, -1, -4).identical(rs.score_attribution(trace, 0, 3, 17, 14))
    with pytest.raises(rs.RheoscopeError, match="there is no layer -3; this model has layers 0 to 1"):
        rs.score_attribution(trace, -3)


def test_invalid_pairs_and_other_scores_are_refused() -> None:
    model = rs.load()
    trace = model.trace("The keys to the cabinet")
    with pytest.raises(rs.RheoscopeError, match=r"token 1 cannot attend to token 3 .*; type query=1, key=1"):
        rs.score_attribution(trace, 0, 0, query=1, key=3)
    with pytest.raises(rs.RheoscopeError, match=r"a score needs a query and a key, .*; type query=-1, key=0"):
        rs.score_attribution(trace, 0, 0, query=1)
    with pytest.raises(rs.RheoscopeError, match="there is no token 99"):
        rs.score_attribution(trace, 0, 0, query=99, key=0)
    cosine = traced("own_cosine", F64)
    with pytest.raises(rs.RheoscopeError, match=r"are not scaled dot products, .*; type trace.scores\(layer, head\)"):
        rs.score_attribution(cosine, 0, 0, query=1, key=0)
