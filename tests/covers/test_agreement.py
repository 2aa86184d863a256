"""Agreement: M = ±I gives ±1, values equal a slow reference, and random heads lie inside their null."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, rankdata, spearmanr

import rheoscope as rs
from rheoscope.covers.agreement import analysis as module
from rheoscope.covers.agreement.analysis import MEAN_FIELDS
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer
from rheoscope.statistics.nulls import p_values
from tests.cases import double, text, traced
from tests.covers.cases import random_model, trace_with_points, writable
from tests.pretrained.cases import random, randomised

F64 = torch.float64


def equal_length_cloud(n: int, width: int, seed: int = 0) -> torch.Tensor:
    """A cloud with mean 0 whose points have length 1."""
    x = random(seed, n // 2, width)
    x = x / x.norm(dim=-1, keepdim=True)
    return torch.cat([x, -x])[torch.randperm(n, generator=torch.Generator().manual_seed(seed))]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_plus_and_minus_identity_give_plus_and_minus_one(sign: float) -> None:
    model = random_model()
    heads = model.view.layer_heads[0]
    with torch.no_grad():
        heads.W_Q[0].copy_(torch.eye(16))
        heads.W_K[0].copy_(sign * torch.eye(16))
    result = rs.agreement(trace_with_points(model, equal_length_cloud(30, 16)), draws=20)
    for field in set(MEAN_FIELDS) - {"position_baseline"}:
        assert result[field].item() == pytest.approx(sign, abs=1e-9), field
    assert sign * result.z.item() > 3
    smallest_p_value = 1 / 21  # 20 draws of one head
    assert result.q_value.item() == result.p_value.item() == pytest.approx(smallest_p_value)
    assert (
        float(p_values(*map(torch.as_tensor, (result.mean_agreement.values, result.mean_agreement_null_draws.values))))
        < 0.05
    )
    assert result.queries.item() == 22


def test_a_head_that_depends_on_position_only_has_agreement_zero() -> None:
    model = random_model(heads=2, position="alibi")
    with torch.no_grad():
        model.view.layer_heads[0].W_Q.zero_()
    x = equal_length_cloud(40, 16) + 3 * torch.linspace(0, 1, 40, dtype=F64)[:, None] * random(9, 16)
    result = rs.agreement(trace_with_points(model, x), draws=0)
    assert np.allclose(result.position_baseline, 1)
    assert float(abs(result.agreement).max()) == 0
    assert float(result.agreement_raw.min()) > 0.2


def slow_agreement(trace: Any, layer: int, head: int, min_keys: int, included: list[int]) -> np.ndarray:
    """The definition, query by query."""
    heads, s = trace.view.layer_heads[layer], trace.scores(layer, head).numpy()
    positions = torch.arange(len(trace))
    permitted = heads.mechanism.mask(positions, positions)
    x, embeddings = heads.norm.normalise(trace.layer_input(layer)).numpy(), trace.points[0].numpy()
    centred, first = x - x[included].mean(0), embeddings - embeddings[included].mean(0)
    rows = []
    for i in included:
        keys = [j for j in included if j != i and permitted[i, j]]
        if len(keys) < min_keys:
            continue
        distance, length = np.abs(np.array(keys) - i), np.linalg.norm(centred[keys], axis=-1)
        controls = np.stack([np.ones(len(keys)), rankdata(distance), rankdata(length)], -1)

        def residual(values: Any, controls: Any = controls) -> Any:
            ranks = rankdata(values)
            return ranks - controls @ np.linalg.lstsq(controls, ranks, rcond=None)[0]

        def partial_correlation(a: Any, b: Any) -> float:
            a, b = residual(a), residual(b)
            return pearsonr(a, b).statistic if min(abs(a).max(), abs(b).max()) > 1e-9 else 0.0

        def cosine(cloud: Any, i: int = i, keys: Any = keys) -> Any:
            return cloud[keys] @ cloud[i] / np.linalg.norm(cloud[keys], axis=-1) / np.linalg.norm(cloud[i])

        score = s[i, keys]
        partial = [partial_correlation(score, cosine(c)) for c in (centred, x, first)]
        raw = spearmanr(score, cosine(centred)).statistic
        rows.append([partial[0], raw, partial[1], partial[2], -spearmanr(score, distance).statistic])
    return np.mean(rows, 0)


@pytest.mark.parametrize("name", ["gpt2", "neox", "gemma3_capped", "qwen3", "bert", "own_alibi", "own_metric"])
def test_values_equal_a_slow_reference(name: str) -> None:
    trace = traced(name, F64)
    points = trace.points.clone()
    points[0] += 1e-3 * random(4, *points.shape[1:])  # equal tokens have equal cosines, whose order is arbitrary
    points[0, 3] *= 100
    trace = replace(trace, points=points)
    result = rs.agreement(trace, draws=0, min_keys=5)
    assert result.attrs["massive"] == [3]
    included = [i for i in range(len(trace)) if i != 3]
    for layer, head in ((0, 0), (trace.view.layers - 1, trace.view.heads - 1)):
        if float(result.queries[layer]) == 0:
            assert bool(result.agreement[layer].isnull().all())
            continue
        expected = slow_agreement(trace, layer, head, 5, included)
        assert np.allclose([float(result[field][layer, head]) for field in MEAN_FIELDS], expected, atol=1e-6)


def test_the_block_size_does_not_change_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traced("llama", F64)
    full_result = rs.agreement(trace, draws=3, min_keys=4)
    monkeypatch.setattr(module, "cache_block_numel", lambda device: 1)
    blocked_result = rs.agreement(trace, draws=3, min_keys=4)
    for field in full_result.data_vars:
        assert np.allclose(full_result[field], blocked_result[field], atol=1e-9), field


@settings(max_examples=6)
@given(seed=st.integers(0, 1000), scale=st.floats(0.1, 10))
def test_values_are_invariant_under_scaled_scores_and_a_rotated_cloud(seed: int, scale: float) -> None:
    model = random_model(heads=2, width=12)
    heads = model.view.layer_heads[0]
    cloud, Q = random(seed, 20, 12), torch.linalg.qr(random(seed + 1, 12, 12))[0]
    trace = trace_with_points(model, cloud)
    plain_result = rs.agreement(trace, draws=0)
    scaled_heads = replace(heads, project=lambda u: tuple(scale * part for part in heads.project(u)))
    rotated_heads = replace(heads, project=lambda u: heads.project(u @ Q.mT))
    for other_heads, points in ((scaled_heads, trace.points), (rotated_heads, trace.points @ Q)):
        view = replace(model.view, layer_heads=(other_heads,))
        result = rs.agreement(replace(trace, view=view, points=points), draws=0)
        for field in MEAN_FIELDS:
            assert np.allclose(result[field], plain_result[field], atol=1e-9), field


@pytest.mark.parametrize("position", ["none", "rotary"])
def test_random_heads_lie_inside_their_null(position: str) -> None:
    inside_shares = []
    for seed in range(4):
        torch.manual_seed(seed)
        config = Config(vocabulary=300, width=48, depth=1, heads=48, head_width=6, position=position)
        model = writable(rs.load(randomised(Transformer(config), seed=seed).double()))
        with torch.no_grad():
            model.view.layer_heads[0].norm.apply.weight.fill_(1)
        cloud = random(seed, 18, 48) * torch.linspace(0.3, 3, 48, dtype=F64)
        result = rs.agreement(trace_with_points(model, cloud), draws=40, seed=seed)
        inside_shares.append(float((abs(result.z) < 1.96).mean()))
        assert float((result.q_value < 0.05).mean()) < 0.05
    assert np.mean(inside_shares) == pytest.approx(0.95, abs=0.03)


def test_a_reparametrised_head_has_the_same_null() -> None:
    """Random rotations act on x̂, so the coordinates inside a head do not matter. The seed fixes the rotations."""
    model = random_model(heads=2, width=12)
    trace = trace_with_points(model, random(0, 20, 12))
    first_result = rs.agreement(trace, draws=8, seed=3)
    with torch.no_grad():
        A = random(5, 6, 6)
        model.view.layer_heads[0].W_Q.copy_(model.view.layer_heads[0].W_Q @ A)
        model.view.layer_heads[0].W_K.copy_(model.view.layer_heads[0].W_K @ torch.linalg.inv(A).mT)
    second_result = rs.agreement(trace, draws=8, seed=3)
    other_result = rs.agreement(trace, draws=8, seed=4)
    for field in first_result.data_vars:
        assert np.allclose(first_result[field], second_result[field], atol=1e-7), field
    assert not np.allclose(first_result.null_mean, other_result.null_mean, atol=1e-3)


@torch.no_grad()
def test_a_layer_norm_also_centres_the_rotated_clouds() -> None:
    """Adding a component of W along (1, …, 1) changes neither the head nor its null."""
    model = random_model(heads=2, width=12, norm="layer")
    trace = trace_with_points(model, random(0, 20, 12))
    first_result = rs.agreement(trace, draws=8)
    for W in (model.view.layer_heads[0].W_Q, model.view.layer_heads[0].W_K):
        W.add_(random(6, 2, 1, 6))
    second_result = rs.agreement(trace, draws=8)
    for field in first_result.data_vars:
        assert np.allclose(first_result[field], second_result[field], atol=1e-7), field


def test_every_draw_rotates_queries_and_keys_independently() -> None:
    Q, R = first_layer_rotations(random_model(width=6))
    assert len(Q) == len(R) == 7
    assert torch.allclose(Q @ Q.mT, torch.eye(6).expand_as(Q), atol=1e-5)
    assert float((Q - R).abs().amax((-2, -1)).min()) > 0.1


def test_layer_norm_keeps_rotated_clouds_at_mean_zero_and_full_length() -> None:
    """A rotation of E would leave a mean, which the norm removes, so that random heads would read shorter vectors."""
    Q, _ = first_layer_rotations(random_model(width=6, norm="layer"))
    x = random(1, 9, 6)
    x_hat = x - x.mean(-1, keepdim=True)
    rotated = x_hat.float() @ Q
    assert float(rotated.mean(-1).abs().max()) < 1e-5
    assert torch.allclose(rotated.norm(dim=-1), x_hat.float().norm(dim=-1).expand(7, 9), atol=1e-5)


def first_layer_rotations(model: Any) -> list[torch.Tensor]:
    """All rotations of queries and of keys in the first layer, 7 draws."""
    draws = [pairs[0] for pairs in module.random_rotation_pairs(model.view, 7, 0, torch.device("cpu"))]
    return [torch.cat(side) for side in zip(*draws, strict=True)]


def test_heads_with_constant_scores_have_agreement_zero_and_no_p_value() -> None:
    model = random_model(heads=2)
    with torch.no_grad():
        model.view.layer_heads[0].W_Q.zero_()
    result = rs.agreement(trace_with_points(model, random(0, 20, 16)), draws=4)
    assert float(abs(result.agreement).max()) == 0
    assert not bool((abs(result.z) > 0).any())
    assert bool(result.p_value.isnull().all())
    assert bool(result.q_value.isnull().all())


def test_the_mean_over_heads_has_a_null_of_random_heads() -> None:
    model = random_model(heads=4, width=12, kv_heads=2)
    trace = trace_with_points(model, random(0, 20, 12))
    result = rs.agreement(trace, draws=6)
    assert float(result.mean_agreement) == pytest.approx(float(result.agreement.mean()))
    assert float(result.mean_agreement_null_draws.mean()) == pytest.approx(float(result.null_mean.mean()))
    assert result.mean_agreement_null_draws.dims == ("draw",)
    assert "mean_agreement_null_draws" not in rs.agreement(trace, draws=0)


def test_few_draws_bound_the_p_value_from_below() -> None:
    """Pooled p-values are at least 1/(draws · heads + 1). Two draws give no p-value."""
    trace = trace_with_points(random_model(heads=4, width=12), random(0, 20, 12))
    assert float(rs.agreement(trace, draws=3).p_value.min()) >= 1 / 13
    two_draw_result = rs.agreement(trace, draws=2)
    assert bool(two_draw_result.p_value.isnull().all())
    assert bool(two_draw_result.q_value.isnull().all())


@pytest.mark.parametrize("name", ["gpt2", "llama", "own_alibi"])
def test_the_control_fields_equal_the_agreement_of_the_control(name: str) -> None:
    """A control adds its own fields and changes no other field."""
    model = double(name)
    control = rs.load(model.network, untrained=True, seed=3)
    control_trace = control.trace(text())
    result = rs.agreement(model.trace(text()), draws=4, min_keys=4, control=control_trace)
    plain_result = rs.agreement(model.trace(text()), draws=4, min_keys=4)
    control_result = rs.agreement(control_trace, draws=0, min_keys=4)
    for field in ("agreement", "agreement_raw"):
        assert np.allclose(result[f"{field}_untrained"], control_result[field])
        assert not np.allclose(result[f"{field}_untrained"], result[field], atol=1e-2)
    for field in plain_result.data_vars:
        assert np.array_equal(plain_result[field], result[field]), field
    assert "untrained (seed 3)" in result.attrs["control"]
    assert control.view.facts["weights"] in result.attrs["control"]
    assert "control" not in plain_result.attrs


def test_a_control_of_another_text_or_model_is_refused() -> None:
    model = double("llama")
    trace = model.trace(text())
    for control, message in (
        (model.trace(text(1)), r"must have the same tokens as the text, got other tokens; type control=rs.load"),
        (model.trace(text(n=12)), r"\(layers, heads, tokens\) = \(2, 4, 18\), got \(2, 4, 12\); type control"),
        (random_model(depth=1, heads=4).trace(text()), r"got \(1, 4, 18\)"),
    ):
        with pytest.raises(rs.RheoscopeError, match=message):
            rs.agreement(trace, draws=0, min_keys=4, control=control)


def test_errors_name_the_received_value_and_the_next_step() -> None:
    model = double("llama")
    with pytest.raises(
        rs.RheoscopeError, match=r"at least 8 other keys .* none of the 6 tokens has that many; use a longer"
    ):
        rs.agreement(model.trace(text(n=6)), draws=0, keep_massive=True)
    with pytest.raises(rs.RheoscopeError, match=r"draws must be 0 or at least 2, got 1; type draws=200"):
        rs.agreement(model.trace(text()), draws=1)
    with pytest.raises(rs.RheoscopeError, match=r"min_keys must be at least 4 .*, got 3; type min_keys=8"):
        rs.agreement(model.trace(text()), draws=0, min_keys=3)
    nan_trace = replace(model.trace(text()), points=torch.full((5, 18, 32), float("nan"), dtype=F64))
    with pytest.raises(rs.RheoscopeError, match="NaN or infinity"):
        rs.agreement(nan_trace, draws=0)


@pytest.mark.parametrize("family", ["llama", "bert", "gemma3"])
@pytest.mark.parametrize("queries", [None, 8])
def test_the_check_without_the_device_agrees_with_the_device(
    family: str, queries: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`enough_keys_guaranteed` never accepts a text that the full check refuses."""
    model, is_guaranteed, answers = double(family), module.enough_keys_guaranteed, set()
    for n in (5, 6, 7, 8, 10, 13):
        traces = model.trace([text(n=n), text(n=13)])
        with monkeypatch.context() as patch:
            patch.setattr(module, "enough_keys_guaranteed", lambda *_: False)
            expected = error_of_batch(traces, queries)
        with monkeypatch.context() as patch:
            patch.setattr(
                module,
                "enough_keys_guaranteed",
                lambda *arguments: answers.add(is_guaranteed(*arguments)) or is_guaranteed(*arguments),
            )
            assert error_of_batch(traces, queries) == expected
    assert answers == {True, False}


def error_of_batch(traces: Any, queries: int | None) -> str:
    """The error message of a batch, or an empty string."""
    try:
        module.batch(traces, draws=0, min_keys=6, max_queries=queries, keep_massive=True)
    except rs.RheoscopeError as error:
        return str(error)
    return ""


def test_the_standard_error_matches_the_spread_of_sampled_queries() -> None:
    """Samples scatter around the value of all queries by about their standard error. All queries have no error field."""
    trace = trace_with_points(random_model(heads=2), random(0, 120, 16))
    full_result = rs.agreement(trace, draws=0)
    assert rs.agreement(trace, draws=0, max_queries=120).equals(full_result)  # the text has 120 queries
    assert "agreement_error" not in full_result
    results = [rs.agreement(trace, draws=0, max_queries=30, seed=seed) for seed in range(40)]
    values = np.stack([result.agreement.values for result in results])
    standard_error = np.stack([result.agreement_error.values for result in results]).mean(0)
    assert np.all(abs(values.mean(0) - full_result.agreement.values) < 3 * standard_error / np.sqrt(40))
    assert np.all((values.std(0) / standard_error > 0.6) & (values.std(0) / standard_error < 1.7))
