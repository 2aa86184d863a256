"""Which lowering is taken, and that it says why."""

import pytest
import torch

import rheoscope as rs
from rheoscope.attention.lower import block_size, plan
from rheoscope.attention.lower.choice import LOWERINGS, Choice, choose_lowering
from rheoscope.attention.zoo import ZOO
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import inputs, zoo_mechanism

FOLDS = ["scaled_dot", "bilinear", "cosine", "metric", "mahalanobis", "kernel_rbf", "relation", "symmetric_relation"]


def taken(name: str, **options: str) -> Choice:
    return zoo_mechanism(name).explain(*(x.float() for x in inputs(5, 5)), **options)


@pytest.mark.parametrize("name", [*FOLDS, "metric_map", "softmax_sink"])
def test_dot_products_in_disguise_take_the_fused_kernel(name: str) -> None:
    choice = taken(name, mask="causal")
    assert choice.name == "sdpa"
    assert "dot product" in choice.reason


@pytest.mark.parametrize(("name", "lowering"), [("linear", "prefix"), ("shaped", "shaped"), ("sigmoid", "reference")])
def test_the_others_take_what_fits(name: str, lowering: str) -> None:
    assert taken(name).name == lowering


@pytest.mark.parametrize("name", sorted({*ZOO} - {*FOLDS, "metric_map", "softmax_sink", "linear", "shaped"}))
def test_long_texts_take_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert taken(name).name == "reference"
    assert "quicker in one piece" in taken(name).rejections["blocks"]
    monkeypatch.setattr(block_size, "CPU_BLOCK", 10)
    monkeypatch.setattr(plan, "CHOICE_CACHE", {})
    assert taken(name).name == "blocks"


def test_a_choice_prints_itself_and_what_it_passed_over() -> None:
    lines = str(taken("sigmoid")).splitlines()
    assert lines[0].startswith("reference: the definition itself")
    assert [line.split(":")[0] for line in lines[1:]] == [
        f"  not {name}" for name in ("kernels", "prefix", "shaped", "cudnn", "flex", "sdpa", "blocks")
    ]
    assert "Sigmoid, not softmax" in lines[6]


@pytest.mark.parametrize("name", ZOO)
def test_every_reason_is_one_sentence(name: str) -> None:
    q, k, v = (x.float() for x in inputs(5, 5))
    for lowering, offer in LOWERINGS.items():
        answer = offer(zoo_mechanism(name), q, k, v)
        why = answer if isinstance(answer, str) else answer.reason
        assert len(why) > 20, lowering
        assert "\n" not in why


def test_the_one_named_is_taken_or_refused() -> None:
    q, k, v = (x.float() for x in inputs(5, 5))
    for lowering in ("sdpa", "blocks", "reference"):
        assert choose_lowering(zoo_mechanism("scaled_dot"), q, k, v, lowering=lowering).name == lowering
    with pytest.raises(RheoscopeError, match="Entmax, not softmax"):
        choose_lowering(zoo_mechanism("entmax15"), q, k, v, lowering="sdpa")
    with pytest.raises(RheoscopeError, match="unknown lowering 'flash'; type one of kernels"):
        choose_lowering(zoo_mechanism("entmax15"), q, k, v, lowering="flash")


def test_reference_always_offers() -> None:
    assert list(LOWERINGS)[-1] == "reference"
    for name in ZOO:
        assert taken(name, lowering="reference").rejections == {}


def test_explaining_runs_nothing() -> None:
    """Only one token is looked at, so it is as quick for a long text."""
    q = torch.zeros(1, 1, 1 << 20, 4)
    assert rs.mechanism("scaled_dot").explain(q, q, q).name == "sdpa"
    assert rs.mechanism("sigmoid").explain(q, q, q, mask="causal").name == "blocks"
