"""Tests of sparse features in scores, logits and heads: exact sums, planted pairs, and dictionaries that do not fit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.covers.feature_map import kernel
from rheoscope.covers.feature_quality import feature_quality
from rheoscope.running.feature_activations import ReLU
from rheoscope.running.feature_components import feature_components
from rheoscope.running.feature_sites import Site, mlp_norm_output
from rheoscope.shapes import RheoscopeError
from rheoscope.space.operator import Factored
from tests.cases import double, random, traced
from tests.covers.dictionaries import exact_features, random_features, with_points
from tests.laws.moves import model_after, move_ov, move_qk

F64 = torch.float64
FAMILIES = ["gpt2", "llama", "mistral", "qwen3", "neox", "gemma3", "own", "own_peri"]
"""LayerNorm with biases, RoPE with grouped heads, a window, QK-norm, parallel blocks, norms around blocks, models of our own."""
SITES = ["L0.resid_pre", "L0.resid_mid", "L0.resid_post", "L0.attention", "L0.mlp"]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("site", SITES)
def test_features_and_errors_sum_to_the_score_and_to_the_pattern(name: str, site: str) -> None:
    trace = traced(name, F64)
    features = random_features(trace.view.width, site)
    plain = rs.score_attribution(trace, 1, 1, query=5, key=3)
    pair = rs.score_attribution(trace, 1, 1, query=5, key=3, features=features)
    assert float(pair.score) == pytest.approx(float(plain.score), rel=1e-5)
    assert float(pair.contribution.sum() + pair.position_bias) == pytest.approx(float(plain.score), rel=1e-5, abs=1e-9)
    assert float(pair.feature_share + pair.error_share + pair.rest_share) == pytest.approx(1)
    pattern = rs.score_attribution(trace, 1, 1, features=features)
    assert float(pattern.contribution.sum()) == pytest.approx(
        float(rs.score_attribution(trace, 1, 1).contribution.sum()), rel=1e-5, abs=1e-9
    )


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("site", ["L0.resid_post", "L1.mlp", "L1.resid_post"])
def test_features_sum_to_the_logit(name: str, site: str) -> None:
    trace = traced(name, F64)
    result = rs.readout(trace, features=random_features(trace.view.width, site), draws=0)
    assert float(result.logit_above_mean) == pytest.approx(float(rs.readout(trace, draws=0).logit_above_mean), rel=1e-6)
    assert float(result.feature_share + result.error_share + result.rest_share) == pytest.approx(1)
    assert "features.error" in result.component.values


def test_a_term_is_the_product_of_two_activations_with_the_form_of_their_directions() -> None:
    """The slow twin: f_a f_b d_a M d_bᵀ times the scales of both norms, one pair at a time."""
    trace = traced("gpt2", F64)
    features = random_features(trace.view.width, "L0.resid_post")
    result = rs.score_attribution(trace, 1, 2, query=6, key=3, features=features, top=1000)
    norm, M = trace.view.layer_heads[1].norm, trace.view.head(1, 2).M.dense().detach()
    x = trace.layer_input(1)
    f = features.encode(x)
    for a, b, value in zip(result.term_from.values, result.term_to.values, result.largest.values, strict=True):
        if a.startswith("f") and b.startswith("f") and "." not in a + b:
            i, j = int(a[1:]), int(b[1:])
            form = features.W_dec[i] @ M @ features.W_dec[j]
            expected = f[6, i] * f[3, j] * norm.scale(x)[6] * norm.scale(x)[3] * form
            assert float(value) == pytest.approx(float(expected), rel=1e-6)
    assert np.all(np.diff(np.abs(result.largest.values)) <= 0)
    assert float(result.largest_share.sum()) == pytest.approx(1)


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3"])
def test_a_planted_pair_of_features_is_first(name: str) -> None:
    trace = traced(name, F64)
    query, key, site = 7, 4, "L0.resid_post"
    M = trace.view.head(1, 1).M(query - key).dense()
    U, _, Vh = torch.linalg.svd(M)
    directions = torch.nn.functional.normalize(
        torch.cat([random(5, 4, trace.view.width).double(), U[:, :1].mT, Vh[:1]]), dim=-1
    )
    activations = 0.05 * random(6, len(trace), 6).double().abs()
    activations[query, 4], activations[key, 5] = 2, 2
    features = exact_features(directions, site)
    result = rs.score_attribution(
        with_points(trace, site, activations @ directions), 1, 1, query=query, key=key, features=features
    )
    assert (result.term_from.values[0], result.term_to.values[0]) == ("f4", "f5")
    assert abs(float(result.error_share)) < 1e-6
    assert abs(float(result.feature_share + result.rest_share) - 1) < 1e-6


def test_a_planted_feature_map_is_first_and_no_gauge_changes_it() -> None:
    model = double("llama")
    head = model.view.head(1, 2)
    U, _, Vh = torch.linalg.svd(head.F.dense())
    features = random_features(model.view.width, "L0.resid_post", activation=ReLU())
    W_enc, W_dec = features.W_enc.clone(), features.W_dec.clone()
    W_dec[11], W_enc[:, 7] = 3 * U[:, 0], 20 * Vh[0]
    features = replace(features, W_enc=W_enc, W_dec=W_dec)
    result = rs.feature_map(head, features, top=5, draws=4)
    assert (int(result.feature_from[0]), int(result.feature_to[0])) == (11, 7)
    assert float(result.z[0]) > 3
    rescaled = replace(features, W_dec=W_dec * 4, W_enc=W_enc / 4, b_enc=features.b_enc / 4)
    np.testing.assert_allclose(rs.feature_map(head, rescaled, top=5, draws=0).value, result.value, rtol=1e-9)
    reparametrised = model_after("llama", move_qk, move_ov).view.head(1, 2)
    for operator, offset in (("F", 0), ("M", 3)):
        before, after = (
            rs.feature_map(h, features, operator=operator, offset=offset, draws=0) for h in (head, reparametrised)
        )
        np.testing.assert_allclose(after.value, before.value, rtol=1e-5)


def test_blocks_of_rows_find_the_pairs_of_the_dense_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    A = Factored(random(0, 8, 3), random(1, 3, 8))
    directions, read = random(2, 9, 8), random(3, 7, 8)
    dense = directions @ A.dense() @ read.mT
    monkeypatch.setattr("rheoscope.covers.feature_map.unblocked_numel", lambda device: 15)
    values, pairs = kernel(A, directions, read, 10)
    torch.testing.assert_close(values, dense.flatten()[pairs])
    torch.testing.assert_close(values.abs(), dense.flatten().abs().sort(descending=True).values[:10])


def test_a_feature_map_of_random_directions_is_within_its_null() -> None:
    head = double("gpt2").view.head(1, 1)
    result = rs.feature_map(head, random_features(32, "L0.resid_post"), top=4, draws=40)
    assert abs(float(result.z[0])) < 4


def test_many_active_features_share_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rheoscope.running.feature_components.MAX_PART_NUMBERS", 1)
    trace = traced("gpt2", F64)
    features = random_features(trace.view.width, "L0.resid_post", activation=ReLU())
    parts = feature_components(trace, features)
    assert "features.other" in parts.names
    assert sum(name.startswith("f") and name[1:].isdigit() for name in parts.names) == 16
    torch.testing.assert_close(parts.parts.sum(0), trace.points[-1])


def test_a_transcoder_replaces_the_update_of_its_mlp() -> None:
    trace = traced("llama", F64)
    features = random_features(32, "L0.mlp", reads=Site.parse("L0.mlp_input"))
    parts = feature_components(trace, features)
    assert "L0.mlp" not in parts.names
    assert "L1.mlp" in parts.names
    torch.testing.assert_close(parts.parts.sum(0), trace.points[-1])
    x = trace.points_at("L0.resid_mid")
    network = double("llama").network
    expected = network.model.layers[0].post_attention_layernorm(x)
    torch.testing.assert_close(mlp_norm_output(trace.view, 0, x), expected)
    np.testing.assert_allclose(
        features.decompose(trace, [3]).activations, features.encode(expected[3:4]).detach(), rtol=1e-6, atol=1e-9
    )


def test_quality_of_an_exact_and_of_an_empty_dictionary() -> None:
    model = double("gpt2")
    texts = [[1, 5, 9, 3, 7], [1, 8, 2, 4], [1, 6, 30, 22, 21, 8], [1, 9, 9, 10]]
    identity = torch.eye(32, dtype=F64)
    exact = exact_features(torch.cat([identity, -identity]), "L0.resid_post")
    exact = replace(exact, W_enc=torch.cat([identity, -identity], 1))
    quality = feature_quality(model, texts, exact)
    assert float(quality.explained_variance) == pytest.approx(1)
    assert float(quality.loss_increase) == pytest.approx(0, abs=1e-9)
    assert float(quality.loss_recovered) == pytest.approx(1)
    points = torch.cat([model.trace(text).points_at("L0.resid_post") for text in texts])
    empty = replace(exact, b_enc=torch.full((64,), -1e9, dtype=F64), b_dec=points.mean(0))
    quality = feature_quality(model, texts, empty)
    assert float(quality.explained_variance) == pytest.approx(0, abs=1e-9)
    assert float(quality.loss_spliced) == pytest.approx(float(quality.loss_ablated))
    assert float(quality.inactive_share) == 1


def test_dictionaries_that_do_not_fit_are_refused() -> None:
    trace = traced("gpt2", F64)
    for features, problem in (
        (random_features(24, "L0.resid_post"), "has width 24, but the model has width 32"),
        (random_features(32, "L7.resid_post"), "belongs to layer 7"),
        (random_features(32, "L1.resid_post"), "ends before it"),
    ):
        with pytest.raises(RheoscopeError, match=problem):
            rs.score_attribution(trace, 1, 0, query=3, key=1, features=features)
    with pytest.raises(RheoscopeError, match="a sparse dictionary"):
        rs.score_attribution(trace, 1, 0, features="sae")
