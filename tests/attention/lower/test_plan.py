"""Calls of the same signature are checked and decided once, and a plan equals the reference."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

import rheoscope as rs
from rheoscope.attention import mechanism as home
from rheoscope.attention.lower import plan as module
from rheoscope.attention.lower.choice import choose_lowering
from rheoscope.attention.mask import Padding, Window
from rheoscope.attention.parameters import structure
from rheoscope.attention.position_bias import ALiBi, alibi_slopes
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model_parts import ModelRotary
from tests.attention.cases import (
    MECHANISM_NAMES,
    any_mechanism,
    gap,
    gradients,
    inputs,
    random,
    random_booleans,
    reference_output,
    zoo_mechanism,
)


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHOICE_CACHE", {})


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments of every call for which a lowering was chosen."""
    calls: list[Any] = []
    monkeypatch.setattr(module, "choose_lowering", lambda *args: calls.append(args) or choose_lowering(*args))
    return calls


@pytest.mark.parametrize("name", MECHANISM_NAMES)
def test_a_plan_equals_the_reference_forward_and_backward(name: str) -> None:
    mechanism, qkv = any_mechanism(name), inputs(5, 5)
    mechanism = mechanism.with_mask("causal") if mechanism.domain.allows_masks else mechanism
    out, expected = mechanism.plan(*qkv)(*qkv), reference_output(mechanism, *qkv)
    assert gap(out, expected) < 1e-10
    if mechanism.domain.is_differentiable:
        g = random(3, *out.shape)
        expected_gradients = gradients(reference_output, mechanism, qkv, g)
        actual = gradients(lambda planned, *args: planned.plan(*args)(*args), mechanism, qkv, g)
        assert max(gap(actual[name], expected_gradients[name]) for name in expected_gradients) < 1e-9


def test_calls_of_one_signature_share_a_plan(decisions: list[Any]) -> None:
    metric, (q, k, v) = rs.mechanism("metric"), inputs(5, 5)
    plan = metric.plan(q, k, v, mask="causal")
    assert metric.plan(q + 1, k - 1, 2 * v, mask="causal") is plan
    assert metric.explain(q, k, v, mask="causal") is plan.choice
    metric.attend(q, k, v, "causal")
    assert len(decisions) == 1
    with torch.no_grad():
        plan_without_gradients = metric.plan(q, k, v, mask="causal")
    others = [
        metric.plan(q, k, v),
        metric.plan(q, k, v, mask="none"),
        metric.plan(q, k, v, mask="causal", lowering="reference"),
        metric.plan(q.float(), k.float(), v.float(), mask="causal"),
        metric.plan(q[:, :, 1:], k, v, mask="causal"),
        metric.plan(q, k, v, mask=Window(2)),
        plan_without_gradients,
    ]
    assert len({id(other) for other in [plan, *others]}) == 8
    assert [other.choice.name for other in others] == ["sdpa", "sdpa", "reference", "sdpa", "sdpa", "sdpa", "sdpa"]


def test_layers_of_equal_structure_share_a_choice(decisions: list[Any]) -> None:
    """Other tensors in the mechanism or in the mask do not need a new choice."""
    q, k, v = inputs(5, 5)
    for seed in range(3):
        mechanism = replace(zoo_mechanism("bilinear"), position=ALiBi(alibi_slopes(4).double() * seed))
        mechanism.attend(q, k, v, Padding(random_booleans(seed, 2, 5)))
    assert len(decisions) == 1
    zoo_mechanism("bilinear").attend(q, k, v, Padding(random_booleans(1, 2, 5)))
    replace(zoo_mechanism("bilinear"), position=ModelRotary(lambda x, positions: x)).attend(q, k, v)
    replace(zoo_mechanism("bilinear"), position=ModelRotary(lambda x, positions: -x)).attend(q, k, v)
    assert len(decisions) == 4


def test_a_layer_in_training_is_planned_once(decisions: list[Any]) -> None:
    layer = rs.nn.MultiHeadAttention(8, heads=2, mechanism="bilinear")
    for _ in range(3):
        layer(torch.randn(1, 5, 8), mask="causal").sum().backward()
        with torch.no_grad():
            for x in layer.parameters():
                x -= 0.1 * x.grad
    assert len(decisions) == 1
    assert layer.attention.current_mechanism() is layer.attention.mechanism


def test_replaced_parameters_are_used() -> None:
    layer, (q, k, v) = rs.nn.Attention("bilinear", dim=6).double(), inputs(5, 5)
    other = {"learned.score_phi_W": random(1, 6, 6)}
    expected = reference_output(rs.mechanism("bilinear", B=random(1, 6, 6)), q, k, v)
    assert gap(torch.func.functional_call(layer, other, (q, k, v)), expected) < 1e-12
    layer.load_state_dict(other, assign=True)
    assert gap(layer(q, k, v), expected) < 1e-12
    assert gap(copy.deepcopy(layer)(q, k, v), expected) < 1e-12


def test_a_plan_refuses_calls_of_another_signature() -> None:
    q, k, v = inputs(5, 5)
    plan = rs.mechanism("scaled_dot").plan(q, k, v)
    with pytest.raises(RheoscopeError, match=r"for q \(2, 4, 5, 6\).*got q \(2, 4, 4, 6\).*type mechanism.plan"):
        plan(q[:, :, 1:], k, v)
    with pytest.raises(RheoscopeError, match=r"float64.*float32"):
        plan(q.float(), k.float(), v.float())
    with torch.no_grad():
        assert gap(plan(q, k, v), reference_output(rs.mechanism("scaled_dot"), q, k, v)) < 1e-12


def test_a_failed_check_is_not_cached() -> None:
    q, k, v = inputs(5, 5)
    for _ in range(2):
        with pytest.raises(RheoscopeError, match="needs q and k of the same width"):
            rs.mechanism("scaled_dot").plan(q, k[..., 1:], v)


def test_the_caches_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CHOICES", 3)
    monkeypatch.setattr(home, "MAX_PLANS", 2)
    dot, (q, k, v) = rs.mechanism("scaled_dot"), inputs(9, 9)
    for n in range(1, 9):
        dot.attend(q[:, :, :n], k[:, :, :n], v[:, :, :n], mask="causal")
        assert len(module.CHOICE_CACHE) <= 3
        assert len(dot._plans) <= 2


def test_threads_that_plan_the_same_call_agree() -> None:
    metric, (q, k, v) = rs.mechanism("metric"), inputs(5, 5)
    with ThreadPoolExecutor(8) as pool:
        plans = list(pool.map(lambda _: metric.plan(q, k, v, "causal"), range(64)))
    assert len({id(plan) for plan in plans}) == len({id(plan.choice) for plan in plans}) == 1


def test_copies_and_pickles_contain_no_cache() -> None:
    metric, (q, k, v) = rs.mechanism("metric", sigma=2.0), inputs(5, 5)
    out = metric(q, k, v, mask="causal")
    for duplicate in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric)), replace(metric)):
        assert set(vars(duplicate)) == {"score", "mask", "position", "normaliser", "value"}
        assert torch.equal(duplicate(q, k, v, mask="causal"), out)


def test_a_structure_contains_everything_but_the_numbers_in_tensors() -> None:
    mechanism = zoo_mechanism("relation")
    assert structure(mechanism) == structure(zoo_mechanism("relation"))
    assert structure(mechanism) != structure(zoo_mechanism("relation", dim=5))
    assert structure(mechanism) != structure(mechanism.with_mask("causal"))
    assert structure(Window(2)) != structure(Window(3))
    assert structure(Padding(random_booleans(1, 2, 5))) == structure(Padding(random_booleans(2, 2, 5)))
    rotary = ModelRotary(lambda x, positions: x)
    assert structure(rotary) != structure(rotary)  # functions have no equality, so the mechanism caches its structure
