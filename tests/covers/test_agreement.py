"""Agreement: planted likeness gives 1 and its opposite −1, a slow twin gives the same numbers, random heads lie in their null."""

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
from tests.covers.cases import bare, on
from tests.pretrained.cases import random, randomised

F64 = torch.float64


def even(n: int, width: int, seed: int = 0) -> torch.Tensor:
    """A cloud around 0 of points of one length."""
    x = random(seed, n // 2, width)
    x = x / x.norm(dim=-1, keepdim=True)
    return torch.cat([x, -x])[torch.randperm(n, generator=torch.Generator().manual_seed(seed))]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_planted_likeness_is_found(sign: float) -> None:
    """Law 4: M = ±I."""
    model = bare()
    heads = model.view.layer_heads[0]
    with torch.no_grad():
        heads.W_Q[0].copy_(torch.eye(16))
        heads.W_K[0].copy_(sign * torch.eye(16))
    found = rs.agreement(on(model, even(30, 16)), draws=20)
    for field in set(MEAN_FIELDS) - {"position_baseline"}:
        assert found[field].item() == pytest.approx(sign, abs=1e-9), field
    assert sign * found.z.item() > 3
    assert found.q_value.item() == found.p_value.item() == pytest.approx(1 / 21)  # 20 draws of one head say no more
    assert (
        float(p_values(*map(torch.as_tensor, (found.mean_agreement.values, found.mean_agreement_null_draws.values))))
        < 0.05
    )
    assert found.queries.item() == 22


def test_position_alone_is_no_agreement() -> None:
    """A head that only sees distance: all of it is position's, nothing is left for likeness."""
    model = bare(heads=2, position="alibi")
    with torch.no_grad():
        model.view.layer_heads[0].W_Q.zero_()
    x = even(40, 16) + 3 * torch.linspace(0, 1, 40, dtype=F64)[:, None] * random(9, 16)
    found = rs.agreement(on(model, x), draws=0)
    assert np.allclose(found.position_baseline, 1)
    assert float(abs(found.agreement).max()) == 0
    assert float(found.agreement_raw.min()) > 0.2


def slow(trace: Any, layer: int, head: int, least: int, kept: list[int]) -> np.ndarray:
    """The definition, read aloud, query by query."""
    heads, s = trace.view.layer_heads[layer], trace.scores(layer, head).numpy()
    at = torch.arange(len(trace))
    permitted = heads.mechanism.mask(at, at)
    x, start = heads.norm.normalise(trace.layer_input(layer)).numpy(), trace.points[0].numpy()
    centred, first = x - x[kept].mean(0), start - start[kept].mean(0)
    rows = []
    for i in kept:
        keys = [j for j in kept if j != i and permitted[i, j]]
        if len(keys) < least:
            continue
        far, length = np.abs(np.array(keys) - i), np.linalg.norm(centred[keys], axis=-1)
        controls = np.stack([np.ones(len(keys)), rankdata(far), rankdata(length)], -1)

        def rest(values: Any, controls: Any = controls) -> Any:
            ranks = rankdata(values)
            return ranks - controls @ np.linalg.lstsq(controls, ranks, rcond=None)[0]

        def together(a: Any, b: Any) -> float:
            a, b = rest(a), rest(b)
            return pearsonr(a, b).statistic if min(abs(a).max(), abs(b).max()) > 1e-9 else 0.0

        def cosine(cloud: Any, i: int = i, keys: Any = keys) -> Any:
            return cloud[keys] @ cloud[i] / np.linalg.norm(cloud[keys], axis=-1) / np.linalg.norm(cloud[i])

        score = s[i, keys]
        partial = [together(score, cosine(c)) for c in (centred, x, first)]
        raw = spearmanr(score, cosine(centred)).statistic
        rows.append([partial[0], raw, partial[1], partial[2], -spearmanr(score, far).statistic])
    return np.mean(rows, 0)


@pytest.mark.parametrize("name", ["gpt2", "neox", "gemma3_capped", "qwen3", "bert", "own_alibi", "own_metric"])
def test_it_equals_a_slow_twin(name: str) -> None:
    trace = traced(name, F64)
    points = trace.points.clone()
    points[0] += 1e-3 * random(4, *points.shape[1:])  # equal tokens have equal cosines: no order to compare here
    points[0, 3] *= 100
    trace = replace(trace, points=points)
    found = rs.agreement(trace, draws=0, min_keys=5)
    assert found.attrs["massive"] == [3]
    kept = [i for i in range(len(trace)) if i != 3]
    for layer, head in ((0, 0), (trace.view.layers - 1, trace.view.heads - 1)):
        if float(found.queries[layer]) == 0:
            assert bool(found.agreement[layer].isnull().all())
            continue
        wanted = slow(trace, layer, head, 5, kept)
        assert np.allclose([float(found[field][layer, head]) for field in MEAN_FIELDS], wanted, atol=1e-6)


def test_blocks_of_queries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traced("llama", F64)
    whole = rs.agreement(trace, draws=6, min_keys=4)
    monkeypatch.setattr(module, "cache_block_numel", lambda device: 1)
    apart = rs.agreement(trace, draws=6, min_keys=4)
    for field in whole.data_vars:
        assert np.allclose(whole[field], apart[field], atol=1e-9), field


@settings(max_examples=6)
@given(seed=st.integers(0, 1000), scale=st.floats(0.1, 10))
def test_scales_of_scores_and_turns_of_the_cloud_change_nothing(seed: int, scale: float) -> None:
    model = bare(heads=2, width=12)
    heads = model.view.layer_heads[0]
    cloud, Q = random(seed, 20, 12), torch.linalg.qr(random(seed + 1, 12, 12))[0]
    trace = on(model, cloud)
    plain = rs.agreement(trace, draws=0)
    wider = replace(heads, project=lambda u: tuple(scale * part for part in heads.project(u)))
    turned = replace(heads, project=lambda u: heads.project(u @ Q.mT))
    for other, points in ((wider, trace.points), (turned, trace.points @ Q)):
        view = replace(model.view, layer_heads=(other,))
        found = rs.agreement(replace(trace, view=view, points=points), draws=0)
        for field in MEAN_FIELDS:
            assert np.allclose(found[field], plain[field], atol=1e-9), field


@pytest.mark.parametrize("position", ["none", "rotary"])
def test_random_heads_lie_inside_their_null(position: str) -> None:
    inside = []
    for seed in range(4):
        torch.manual_seed(seed)
        config = Config(vocabulary=300, width=48, depth=1, heads=48, head_width=6, position=position)
        model = rs.load(randomised(Transformer(config), seed=seed).double())
        with torch.no_grad():
            model.view.layer_heads[0].norm.apply.weight.fill_(1)
        cloud = random(seed, 24, 48) * torch.linspace(0.3, 3, 48, dtype=F64)
        found = rs.agreement(on(model, cloud), draws=60, seed=seed)
        inside.append(float((abs(found.z) < 1.96).mean()))
        assert float((found.q_value < 0.05).mean()) < 0.05
    assert np.mean(inside) == pytest.approx(0.95, abs=0.03)


def test_a_gauge_leaves_the_null_alone() -> None:
    """Random rotations act on x̂: what weights are written in does not matter, and a seed gives the same numbers again."""
    model = bare(heads=2, width=12)
    trace = on(model, random(0, 20, 12))
    one = rs.agreement(trace, draws=8, seed=3)
    with torch.no_grad():
        A = random(5, 6, 6)
        model.view.layer_heads[0].W_Q.copy_(model.view.layer_heads[0].W_Q @ A)
        model.view.layer_heads[0].W_K.copy_(model.view.layer_heads[0].W_K @ torch.linalg.inv(A).mT)
    two = rs.agreement(trace, draws=8, seed=3)
    other = rs.agreement(trace, draws=8, seed=4)
    for field in one.data_vars:
        assert np.allclose(one[field], two[field], atol=1e-7), field
    assert not np.allclose(one.null_mean, other.null_mean, atol=1e-3)


@torch.no_grad()
def test_a_centring_norm_centres_turned_clouds_too() -> None:
    """What W does along (1, …, 1) is nothing, in the null as in the head."""
    model = bare(heads=2, width=12, norm="layer")
    trace = on(model, random(0, 20, 12))
    one = rs.agreement(trace, draws=8)
    for W in (model.view.layer_heads[0].W_Q, model.view.layer_heads[0].W_K):
        W.add_(random(6, 2, 1, 6))
    two = rs.agreement(trace, draws=8)
    for field in one.data_vars:
        assert np.allclose(one[field], two[field], atol=1e-7), field


def test_every_draw_turns_queries_and_keys_by_rotations_of_their_own() -> None:
    Q, R = (torch.cat(side) for side in zip(*module.random_rotation_pairs(5, 7, 0, torch.device("cpu")), strict=True))
    assert len(Q) == len(R) == 7
    assert torch.allclose(Q @ Q.mT, torch.eye(5).expand_as(Q), atol=1e-5)
    assert float((Q - R).abs().amax((-2, -1)).min()) > 0.1


def test_heads_that_say_nothing_count_nothing() -> None:
    model = bare(heads=2)
    with torch.no_grad():
        model.view.layer_heads[0].W_Q.zero_()
    found = rs.agreement(on(model, random(0, 20, 16)), draws=4)
    assert float(abs(found.agreement).max()) == 0
    assert not bool((abs(found.z) > 0).any())
    assert bool(found.p_value.isnull().all())
    assert bool(found.q_value.isnull().all())


def test_the_mean_over_heads_stands_beside_that_of_random_heads() -> None:
    model = bare(heads=4, width=12, kv_heads=2)
    trace = on(model, random(0, 20, 12))
    found = rs.agreement(trace, draws=6)
    assert float(found.mean_agreement) == pytest.approx(float(found.agreement.mean()))
    assert float(found.mean_agreement_null_draws.mean()) == pytest.approx(float(found.null_mean.mean()))
    assert found.mean_agreement_null_draws.dims == ("draw",)
    assert "mean_agreement_null_draws" not in rs.agreement(trace, draws=0)


def test_few_draws_are_never_surer_than_they_can_be() -> None:
    """p from all heads' draws together: 1/(draws · heads + 1) at least; two draws say nothing."""
    trace = on(bare(heads=4, width=12), random(0, 20, 12))
    assert float(rs.agreement(trace, draws=3).p_value.min()) >= 1 / 13
    few = rs.agreement(trace, draws=2)
    assert bool(few.p_value.isnull().all())
    assert bool(few.q_value.isnull().all())


@pytest.mark.parametrize("name", ["gpt2", "llama", "own_alibi"])
def test_the_control_is_its_own_agreement(name: str) -> None:
    """Beside the trained heads stands what the control would give alone, and nothing else changes."""
    model = double(name)
    control = rs.load(model.network, untrained=True, seed=3)
    beside = control.trace(text())
    found = rs.agreement(model.trace(text()), draws=4, min_keys=4, control=beside)
    plain = rs.agreement(model.trace(text()), draws=4, min_keys=4)
    alone = rs.agreement(beside, draws=0, min_keys=4)
    for field in ("agreement", "agreement_raw"):
        assert np.allclose(found[f"{field}_untrained"], alone[field])
        assert not np.allclose(found[f"{field}_untrained"], found[field], atol=1e-2)
    for field in plain.data_vars:
        assert np.array_equal(plain[field], found[field]), field
    assert "untrained (seed 3)" in found.attrs["control"]
    assert control.view.facts["weights"] in found.attrs["control"]
    assert "control" not in plain.attrs


def test_a_control_of_another_text_or_model_is_refused() -> None:
    model = double("llama")
    trace = model.trace(text())
    for strange, what in (
        (model.trace(text(1)), r"2 layers of 4 heads on 18 tokens beside .*, other tokens; type control=rs.load"),
        (model.trace(text(n=12)), r"on 12 tokens beside 2 layers of 4 heads on 18 tokens; type control"),
        (bare(depth=1, heads=4).trace(text()), r"got 1 layers of 4 heads"),
    ):
        with pytest.raises(rs.RheoscopeError, match=what):
            rs.agreement(trace, draws=0, min_keys=4, control=strange)


def test_what_it_cannot_do_is_told_in_one_line() -> None:
    model = double("llama")
    with pytest.raises(rs.RheoscopeError, match=r"at least 8 other keys .* none of the 6 tokens has; type a longer"):
        rs.agreement(model.trace(text(n=6)), draws=0, keep_massive=True)
    with pytest.raises(rs.RheoscopeError, match=r"got draws=1, min_keys=8, max_queries=None; type draws=200"):
        rs.agreement(model.trace(text()), draws=1)
    with pytest.raises(rs.RheoscopeError, match=r"got draws=0, min_keys=3"):
        rs.agreement(model.trace(text()), draws=0, min_keys=3)
    holed = replace(model.trace(text()), points=torch.full((5, 18, 32), float("nan"), dtype=F64))
    with pytest.raises(rs.RheoscopeError, match="NaN or infinity"):
        rs.agreement(holed, draws=0)


@pytest.mark.parametrize("family", ["llama", "bert", "gemma3"])
@pytest.mark.parametrize("queries", [None, 8])
def test_what_is_known_without_asking_the_device_is_what_it_says(
    family: str, queries: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that surely has a query with enough keys has one; what is refused is refused either way."""
    model, sure, told = double(family), module.enough_keys_guaranteed, set()
    for n in range(5, 14):
        traces = model.trace([text(n=n), text(n=13)])
        with monkeypatch.context() as asking:
            asking.setattr(module, "enough_keys_guaranteed", lambda *_: False)
            found = refused_or(traces, queries)
        with monkeypatch.context() as watching:
            watching.setattr(module, "enough_keys_guaranteed", lambda *given: told.add(sure(*given)) or sure(*given))
            assert refused_or(traces, queries) == found
    assert told == {True, False}


def refused_or(traces: Any, queries: int | None) -> str:
    try:
        module.batch(traces, draws=0, min_keys=6, max_queries=queries, keep_massive=True)
    except rs.RheoscopeError as error:
        return str(error)
    return ""


def test_some_queries_stand_for_all_and_say_how_well() -> None:
    """Drawn again and again they scatter around all of them about as far as they say; all of them have no error."""
    trace = on(bare(heads=2), random(0, 120, 16))
    whole = rs.agreement(trace, draws=0)
    assert rs.agreement(trace, draws=0, max_queries=120).equals(whole)  # all there are
    assert "agreement_error" not in whole
    found = [rs.agreement(trace, draws=0, max_queries=30, seed=seed) for seed in range(40)]
    values = np.stack([one.agreement.values for one in found])
    stated = np.stack([one.agreement_error.values for one in found]).mean(0)
    assert np.all(abs(values.mean(0) - whole.agreement.values) < 3 * stated / np.sqrt(40))
    assert np.all((values.std(0) / stated > 0.6) & (values.std(0) / stated < 1.7))
