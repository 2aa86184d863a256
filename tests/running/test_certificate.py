"""The certificate of exactness: what a wrong description cannot pass."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers as hf

import rheoscope as rs
from rheoscope.attention.mask import Causal, Window
from rheoscope.attention.score import Gram
from rheoscope.pretrained.certificate import certify
from rheoscope.running.certificate import TOKENS, Certificate, closure_error
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads, Norm, Turned
from tests.pretrained.cases import EVERY, GPT2, ISLANDS, model, network, randomised, traced

Break = Callable[[Heads], Heads]


def broken(name: str, wrong: Break, dtype: torch.dtype = torch.float32) -> Any:
    """The model with the heads of its last layer described wrongly."""
    of = model(name, dtype)
    blocks = (*of.view.blocks[:-1], wrong(of.view.blocks[-1]))
    return replace(of, view=replace(of.view, blocks=blocks))


def swapped_groups(heads: Heads) -> Heads:
    """Query head h with the keys and values of the other group: h % g for h // (h/g)."""
    plain = heads.project

    def project(u: Any) -> Any:
        q, k, v = plain(u)
        return q, k.flip(1), v.flip(1)

    return replace(heads, project=project, W_K=heads.W_K.flip(0), W_V=heads.W_V.flip(0))


def backwards(heads: Heads) -> Heads:
    position = heads.mechanism.position
    assert isinstance(position, Turned)
    turn = position.turn
    return replace(heads, mechanism=replace(heads.mechanism, position=Turned(lambda x, at: turn(x, 50 - at))))


def gained_twice(heads: Heads) -> Heads:
    assert heads.norm.gain is not None
    return replace(heads, norm=replace(heads.norm, gain=heads.norm.gain.square()))


FAULTS: list[tuple[str, str, Break]] = [
    ("wrong scale", "gpt2", lambda h: replace(h, mechanism=replace(h.mechanism, score=Gram(scale=1.1 * h.scale)))),
    ("no mask", "gpt2", lambda h: replace(h, mechanism=replace(h.mechanism, mask=Window(99)))),
    ("wrong window", "mistral", lambda h: replace(h, mechanism=replace(h.mechanism, mask=Causal() & Window(4)))),
    ("no window", "mistral", lambda h: replace(h, mechanism=replace(h.mechanism, mask=Causal()))),
    ("swapped groups", "llama", swapped_groups),
    ("wrong sign of the offset", "llama", backwards),
    ("heads of W_O in another order", "gpt2", lambda h: replace(h, W_O=h.W_O.flip(0))),
    ("queries for keys", "gpt2", lambda h: replace(h, W_Q=h.W_K, W_K=h.W_Q)),
    ("heads of W_Q in another order", "gpt2", lambda h: replace(h, W_Q=h.W_Q.flip(0))),
    ("values for keys", "gpt2", lambda h: replace(h, W_V=h.W_K)),
    ("heads of W_V in another order", "llama", lambda h: replace(h, W_V=h.W_V.flip(0))),
    ("no b_O", "gpt2", lambda h: replace(h, b_O=None)),
    ("no b_K", "llama", lambda h: replace(h, b_K=None)),
    ("no b_V", "gpt2", lambda h: replace(h, b_V=None)),
    ("gain folded twice", "gpt2", gained_twice),
    ("gain not folded", "llama", lambda h: replace(h, norm=replace(h.norm, gain=None))),
    ("Gemma's gain without its 1", "gemma3", lambda h: replace(h, norm=replace(h.norm, gain=h.norm.gain - 1))),
    ("no centring", "gpt2", lambda h: replace(h, norm=replace(h.norm, centred=False))),
    ("no bias of the norm", "gpt2", lambda h: replace(h, norm=replace(h.norm, bias=None))),
    ("another norm", "gpt2", lambda h: replace(h, norm=Norm())),
    ("no norm after attention", "gemma3", lambda h: replace(h, after=None)),
    ("no gain of the QK-norm", "qwen3", lambda h: replace(h, q_norm=replace(h.q_norm, gain=None))),
    ("gain of the other QK-norm", "gemma3", lambda h: replace(h, q_norm=h.k_norm)),
    ("no QK-norm in M", "qwen3", lambda h: replace(h, k_norm=None)),
]


@pytest.mark.parametrize(("name", "wrong"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_a_wrong_description_is_refused(name: str, wrong: Break) -> None:
    with pytest.raises(
        RheoscopeError, match=r"the description of .* does not reproduce this model \(.*\); .* report"
    ) as told:
        certify(broken(name, wrong))
    assert "\n" not in str(told.value)


def test_no_wrong_description_hides_in_the_rounding_of_float16() -> None:
    for _, name, wrong in FAULTS:
        with pytest.raises(
            RheoscopeError, match=r"does not reproduce this model \(.*, where float16 explains 3.9e-03\)"
        ):
            certify(broken(name, wrong, torch.float16))


@pytest.mark.parametrize("name", EVERY)
def test_a_right_description_passes(name: str) -> None:
    found = model(name).view.facts["certificate"]
    assert isinstance(found, Certificate)
    assert found.tokens == TOKENS
    assert found.dtype == "float32"
    assert found.weights <= 1e-6
    assert found.closure <= 1e-6
    assert found.operators <= 1e-5
    double = model(name, torch.float64).view.facts["certificate"]
    assert double.dtype == "float64"
    assert double.operators <= (1e-5 if name in ISLANDS else 1e-12)


@pytest.mark.parametrize("layer", [0, 1])
def test_any_layer_that_is_wrong_or_not_a_number_is_found(layer: int) -> None:
    of = model("gpt2")
    for wrong in (lambda h: replace(h, b_O=torch.full((32,), torch.nan)), lambda h: replace(h, W_O=h.W_O.flip(0))):
        blocks = list(of.view.blocks)
        blocks[layer] = wrong(blocks[layer])
        with pytest.raises(RheoscopeError, match="does not reproduce this model"):
            certify(replace(of, view=replace(of.view, blocks=tuple(blocks))))


def test_closure_is_a_share_of_the_displacement() -> None:
    trace = traced("gpt2")
    assert closure_error(trace, 0) < 1e-6
    without = replace(trace.view.blocks[0], b_O=None)
    other = replace(trace, view=replace(trace.view, blocks=(without, *trace.view.blocks[1:])))
    moved = trace.points[1] - trace.points[0]
    share = float((trace.bias(0).norm() / moved.norm()).detach())
    assert closure_error(other, 0) == pytest.approx(share, rel=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_displacement_that_drowns_in_the_rounding_of_a_large_stream_is_no_fault(dtype: str) -> None:
    """Trained models carry tokens of huge norm: x + Delta is then rounded by more than a share of Delta."""
    net = copy.deepcopy(network("llama"))
    with torch.no_grad():
        net.model.embed_tokens.weight.mul_(3e4)
    of = rs.load(net, dtype=dtype)
    moved = of.trace([5, 6, 7])
    assert float((moved.points[1] - moved.points[0]).norm() / moved.points[0].norm()) < 1e-2
    wrong = replace(of.view.blocks[0], W_O=1e3 * of.view.blocks[0].W_O)
    with pytest.raises(RheoscopeError, match="does not reproduce this model"):
        certify(replace(of, view=replace(of.view, blocks=(wrong, *of.view.blocks[1:]))))


def test_the_certificate_is_one_line() -> None:
    line = str(Certificate(1e-7, 2e-7, 3e-7, 8, "float32"))
    assert "\n" not in line
    assert line.startswith("exact on 8 tokens in float32: weights off by 1.0e-07, closure by 2.0e-07")
    assert str(Certificate(0.0, 0.0, 0.0, 8, "bfloat16", device="cuda:0")).startswith(
        "exact to the rounding of bfloat16 (7.8e-03) on 8 tokens on cuda:0: weights"
    )


def test_the_certificate_names_what_is_ignored() -> None:
    some = Certificate(0.0, 0.0, 0.0, 8, "float32", ("score.weight",))
    assert str(some).endswith("operators by 0.0e+00; ignored, no part of the stream: score.weight")
    many = Certificate(0.0, 0.0, 0.0, 8, "float32", ("a", "b", "c", "d", "e"))
    assert str(many).endswith("; ignored, no part of the stream: a, b, c and 2 more")


def test_a_context_shorter_than_the_certificate() -> None:
    short = randomised(hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2 | {"n_positions": 3})))
    assert rs.load(short).view.facts["certificate"].tokens == 3


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "bert"])
def test_weights_of_every_head_are_those_of_each(name: str) -> None:
    trace = traced(name)
    block, each = trace.view.blocks[1], [trace.weights(1, head) for head in range(trace.view.heads)]
    assert torch.equal(block.every_weights(trace.read_by(1)), torch.stack(each))
