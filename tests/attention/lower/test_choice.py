"""The choice of a lowering and its reason."""

import pytest
import torch

import rheoscope as rs
from rheoscope.attention.lower import block_size, plan
from rheoscope.attention.lower.choice import LOWERINGS, Choice, choose_lowering
from rheoscope.attention.zoo import ZOO
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import inputs, zoo_mechanism

FOLDS = ["scaled_dot", "bilinear", "cosine", "metric", "mahalanobis", "kernel_rbf", "relation", "symmetric_relation"]


def chosen_lowering(name: str, **options: str) -> Choice:
    return zoo_mechanism(name).explain(*(x.float() for x in inputs(5, 5)), **options)


@pytest.mark.parametrize("name", [*FOLDS, "metric_map", "softmax_sink"])
def test_scores_that_are_dot_products_use_the_fused_kernel(name: str) -> None:
    choice = chosen_lowering(name, mask="causal")
    assert choice.name == "sdpa"
    assert "dot product" in choice.reason


@pytest.mark.parametrize(("name", "lowering"), [("linear", "prefix"), ("shaped", "shaped"), ("sigmoid", "reference")])
def test_other_mechanisms_use_their_own_lowering(name: str, lowering: str) -> None:
    assert chosen_lowering(name).name == lowering


@pytest.mark.parametrize("name", sorted({*ZOO} - {*FOLDS, "metric_map", "softmax_sink", "linear", "shaped"}))
def test_long_texts_use_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_lowering(name).name == "reference"
    assert "faster without blocks" in chosen_lowering(name).rejections["blocks"]
    monkeypatch.setattr(block_size, "CPU_BLOCK", 10)
    monkeypatch.setattr(plan, "CHOICE_CACHE", {})
    assert chosen_lowering(name).name == "blocks"


def test_a_choice_prints_its_reason_and_the_rejections() -> None:
    lines = str(chosen_lowering("sigmoid")).splitlines()
    assert lines[0].startswith("reference: the definition itself")
    assert [line.split(":")[0] for line in lines[1:]] == [
        f"  not {name}"
        for name in ("kernels", "prefix", "shaped", "strictly_causal", "cudnn", "flex", "sdpa", "blocks")
    ]
    assert "Sigmoid, not softmax" in lines[7]


@pytest.mark.parametrize("name", ZOO)
def test_every_reason_is_one_sentence(name: str) -> None:
    q, k, v = (x.float() for x in inputs(5, 5))
    for lowering, try_lower in LOWERINGS.items():
        outcome = try_lower(zoo_mechanism(name), q, k, v)
        reason = outcome if isinstance(outcome, str) else outcome.reason
        assert isinstance(reason, Message), lowering
        assert len(reason) > 20, lowering
        assert "\n" not in reason


def test_a_named_lowering_is_used_or_raises() -> None:
    q, k, v = (x.float() for x in inputs(5, 5))
    for lowering in ("sdpa", "blocks", "reference"):
        assert choose_lowering(zoo_mechanism("scaled_dot"), q, k, v, lowering=lowering).name == lowering
    with pytest.raises(RheoscopeError, match="Entmax, not softmax"):
        choose_lowering(zoo_mechanism("entmax15"), q, k, v, lowering="sdpa")
    with pytest.raises(RheoscopeError, match=r"lowering must be one of kernels.*got 'flash'"):
        choose_lowering(zoo_mechanism("entmax15"), q, k, v, lowering="flash")


def test_the_reference_accepts_every_mechanism() -> None:
    assert list(LOWERINGS)[-1] == "reference"
    for name in ZOO:
        assert chosen_lowering(name, lowering="reference").rejections == {}


def test_explain_does_not_run_the_call() -> None:
    """It reads one token only, so it is fast for long texts."""
    q = torch.zeros(1, 1, 1 << 20, 4)
    assert rs.mechanism("scaled_dot").explain(q, q, q).name == "sdpa"
    assert rs.mechanism("sigmoid").explain(q, q, q, mask="causal").name == "blocks"
