"""Distorted pairs: planted pairs come first, and all pairs equal a slow reference."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist
from scipy.stats import rankdata

import rheoscope as rs
from tests.cases import double, text, traced
from tests.covers.cases import random_model, trace_with_points
from tests.covers.test_distortion import model_with_projections
from tests.laws.moves import distinct_tokens
from tests.pretrained.cases import random

F64 = torch.float64


def test_planted_separated_and_merged_pairs_come_first() -> None:
    """Tokens 0 and 1 differ along a stretched direction, tokens 2 and 3 along a direction with singular value 0."""
    x = random(0, 12, 8)
    x[:, 6:] = 0
    x[1] = x[0]
    x[0, 6], x[1, 6] = 0.3, -0.3
    x[2:4, 7] = torch.tensor([4.0, -4.0])
    x[2, :6] = x[3, :6]
    x = x / x.norm(dim=-1, keepdim=True)
    scale = torch.diag(torch.tensor([0.1] * 6 + [30.0, 0.0], dtype=F64))
    model = model_with_projections(scale, torch.eye(8, dtype=F64))
    result = rs.distorted_pairs(trace_with_points(model, x), 0, 0, top=1, keep_massive=True)
    pairs = {
        kind: (result["earlier_token"].sel(kind=kind).item(), result["later_token"].sel(kind=kind).item())
        for kind in ("separated", "merged")
    }
    assert pairs["separated"] == (0, 1)
    assert pairs["merged"][0] in (2, 3)
    assert result.earlier_token_text.sel(kind="separated").item() == trace_with_points(model, x).tokens[0]
    assert result.distance_rank_after.sel(kind="separated").item() > 0.9
    all_pairs = rs.distorted_pairs(trace_with_points(model, random(3, 12, 8)), 0, 0, top=66)
    assert np.allclose(np.sort(all_pairs.distance_rank_before.sel(kind="separated")), np.linspace(0, 1, 66))


def test_pairs_of_equal_tokens_are_left_out() -> None:
    model = random_model(width=8)
    x = random(3, 12, 8)
    x[7] = x[2]
    result = rs.distorted_pairs(trace_with_points(model, x), 0, 0, top=65)
    assert (2, 7) not in zip(result["earlier_token"].values[0], result["later_token"].values[0], strict=True)
    with pytest.raises(
        rs.RheoscopeError, match="top must lie between 1 and 65, the number of pairs of this text, got 66; type top=5"
    ):
        rs.distorted_pairs(trace_with_points(model, x), 0, 0, top=66)


@torch.no_grad()
@pytest.mark.parametrize("image", ["query", "key", "content"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3", "own_metric"])
def test_pairs_equal_a_slow_reference(name: str, image: str) -> None:
    trace = double(name).trace(distinct_tokens())
    included = [i for i in range(len(trace)) if i not in trace.massive_tokens()]
    x = trace.view.layer_heads[1].norm.normalise(trace.layer_input(1))[included]
    head = trace.view.head(1, 2)
    A = {"query": head.M.dense(), "key": head.M.dense().mT, "content": head.F.dense()}[image]
    before, after = (
        (rankdata(pdist(y.numpy())) - 1) / (len(included) * (len(included) - 1) / 2 - 1) for y in (x, x @ A)
    )
    pairs = list(combinations(included, 2))
    change = dict(zip(pairs, after - before, strict=True))
    result = rs.distorted_pairs(trace, 1, 2, projection=image, top=6)
    for kind, sign in (("separated", 1), ("merged", -1)):
        row = result.sel(kind=kind)
        result_pairs = list(zip(row["earlier_token"].values.tolist(), row["later_token"].values.tolist(), strict=True))
        assert len(set(result_pairs)) == 6
        best = np.sort([sign * value for value in change.values()])[::-1][:6]
        assert np.allclose([sign * change[pair] for pair in result_pairs], best, atol=1e-9)
        indices = [pairs.index(pair) for pair in result_pairs]
        assert np.allclose(row.distance_rank_before, before[indices])
        assert np.allclose(row.distance_rank_after, after[indices])
        assert row.later_token_text.values.tolist() == [trace.tokens[second] for _, second in result_pairs]
        assert all(first < second for first, second in result_pairs)


def test_an_isometry_changes_no_rank() -> None:
    model = model_with_projections(3 * torch.linalg.qr(random(0, 12, 12))[0], torch.eye(12, dtype=F64))
    for image in ("query", "key"):
        result = rs.distorted_pairs(trace_with_points(model, random(1, 10, 12)), 0, 0, projection=image, top=45)
        assert np.allclose(result.distance_rank_before, result.distance_rank_after)


@pytest.mark.parametrize("seed", range(4))
def test_pairs_are_invariant_under_a_rotation_and_a_scale_of_the_cloud(seed: int) -> None:
    """The projections of the head are rotated with the cloud."""
    model, Q = random_model(width=8), torch.linalg.qr(random(seed, 8, 8))[0]
    cloud = random(seed + 1, 12, 8)
    result = rs.distorted_pairs(trace_with_points(model, cloud), 0, 0, top=10)
    with torch.no_grad():
        for W in (model.view.layer_heads[0].W_Q, model.view.layer_heads[0].W_K):
            W.copy_(Q.mT @ W)
    rotated_result = rs.distorted_pairs(trace_with_points(model, 3 * cloud @ Q), 0, 0, top=10)
    assert np.allclose(
        result.distance_rank_after - result.distance_rank_before,
        rotated_result.distance_rank_after - rotated_result.distance_rank_before,
    )
    assert (result["earlier_token"] == rotated_result["earlier_token"]).all()


def test_massive_tokens_are_in_no_pair() -> None:
    trace = traced("gpt2", F64)
    points = trace.points.clone()
    points[1, 4] *= 100
    massive_trace = replace(trace, points=points)
    all_pairs = rs.distorted_pairs(massive_trace, 0, 1, top=20)
    assert all_pairs.attrs["massive"] == [4]
    assert 4 not in np.concatenate([all_pairs["earlier_token"].values.ravel(), all_pairs["later_token"].values.ravel()])
    assert rs.distorted_pairs(massive_trace, 0, 1, keep_massive=True).attrs["keep_massive"] == 1


def test_a_negative_layer_counts_from_the_end() -> None:
    trace = traced("llama", F64)
    assert rs.distorted_pairs(trace).attrs["layer"] == 1
    assert rs.distorted_pairs(trace, -2, 1).identical(rs.distorted_pairs(trace, 0, 1))


def test_invalid_settings_are_refused() -> None:
    model = double("llama")
    trace = model.trace(text())
    with pytest.raises(
        rs.RheoscopeError, match="projection must be one of query, key, content, got 'value'; type projection='query'"
    ):
        rs.distorted_pairs(trace, 0, 0, projection="value")
    with pytest.raises(rs.RheoscopeError, match="top must lie between 1 and 10,000, got 0; type top=1"):
        rs.distorted_pairs(trace, 0, 0, top=0)
    with pytest.raises(rs.RheoscopeError, match="no layer -3"):
        rs.distorted_pairs(trace, -3)
    with pytest.raises(rs.RheoscopeError, match="no head 9 in layer 0"):
        rs.distorted_pairs(trace, 0, 9)
    with pytest.raises(rs.RheoscopeError, match="no layer 9"):
        rs.distorted_pairs(trace, 9, 0)
    with pytest.raises(rs.RheoscopeError, match="at least 3 tokens that are not massive, got 2; use a longer text"):
        rs.distorted_pairs(model.trace([5, 6]), 0, 0, keep_massive=True)
    with pytest.raises(rs.RheoscopeError, match="has no M"):
        rs.distorted_pairs(traced("own_cosine", F64), 0, 0)
