"""The certificate rejects every wrong description of a model."""

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
from rheoscope.running.certificate import PROBE_TOKENS, Certificate, closure_error
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads
from rheoscope.space.model_parts import ModelRotary, Norm
from tests.pretrained.cases import EVERY, GPT2, ISLANDS, model, network, randomised, traced

Break = Callable[[Heads], Heads]


def with_fault(name: str, fault: Break, dtype: torch.dtype = torch.float32) -> Any:
    """The model with a wrong description of the heads of its last layer."""
    loaded_model = model(name, dtype)
    blocks = (*loaded_model.view.layer_heads[:-1], fault(loaded_model.view.layer_heads[-1]))
    return replace(loaded_model, view=replace(loaded_model.view, layer_heads=blocks))


def swapped_groups(heads: Heads) -> Heads:
    """Query head h with the keys and values of the other group: h % g for h // (h/g)."""
    original_project = heads.project

    def project(u: Any) -> Any:
        q, k, v = original_project(u)
        return q, k.flip(1), v.flip(1)

    return replace(heads, project=project, W_K=heads.W_K.flip(0), W_V=heads.W_V.flip(0))


def reversed_rotation(heads: Heads) -> Heads:
    position = heads.mechanism.position
    assert isinstance(position, ModelRotary)
    rotate = position.rotate
    return replace(
        heads, mechanism=replace(heads.mechanism, position=ModelRotary(lambda x, positions: rotate(x, 50 - positions)))
    )


def squared_gain(heads: Heads) -> Heads:
    assert heads.norm.gain is not None
    return replace(heads, norm=replace(heads.norm, gain=heads.norm.gain.square()))


FAULTS: list[tuple[str, str, Break]] = [
    ("wrong scale", "gpt2", lambda h: replace(h, mechanism=replace(h.mechanism, score=Gram(scale=1.1 * h.scale)))),
    ("no mask", "gpt2", lambda h: replace(h, mechanism=replace(h.mechanism, mask=Window(99)))),
    ("wrong window", "mistral", lambda h: replace(h, mechanism=replace(h.mechanism, mask=Causal() & Window(4)))),
    ("no window", "mistral", lambda h: replace(h, mechanism=replace(h.mechanism, mask=Causal()))),
    ("swapped groups", "llama", swapped_groups),
    ("wrong sign of the offset", "llama", reversed_rotation),
    ("heads of W_O in another order", "gpt2", lambda h: replace(h, W_O=h.W_O.flip(0))),
    ("queries for keys", "gpt2", lambda h: replace(h, W_Q=h.W_K, W_K=h.W_Q)),
    ("heads of W_Q in another order", "gpt2", lambda h: replace(h, W_Q=h.W_Q.flip(0))),
    ("values for keys", "gpt2", lambda h: replace(h, W_V=h.W_K)),
    ("heads of W_V in another order", "llama", lambda h: replace(h, W_V=h.W_V.flip(0))),
    ("no b_O", "gpt2", lambda h: replace(h, b_O=None)),
    ("no b_K", "llama", lambda h: replace(h, b_K=None)),
    ("no b_V", "gpt2", lambda h: replace(h, b_V=None)),
    ("gain folded twice", "gpt2", squared_gain),
    ("gain not folded", "llama", lambda h: replace(h, norm=replace(h.norm, gain=None))),
    ("Gemma's gain without its 1", "gemma3", lambda h: replace(h, norm=replace(h.norm, gain=h.norm.gain - 1))),
    ("no centring", "gpt2", lambda h: replace(h, norm=replace(h.norm, subtracts_mean=False))),
    ("no bias of the norm", "gpt2", lambda h: replace(h, norm=replace(h.norm, bias=None))),
    ("another norm", "gpt2", lambda h: replace(h, norm=Norm())),
    ("no norm after attention", "gemma3", lambda h: replace(h, output_norm=None)),
    ("no gain of the QK-norm", "qwen3", lambda h: replace(h, q_norm=replace(h.q_norm, gain=None))),
    ("gain of the other QK-norm", "gemma3", lambda h: replace(h, q_norm=h.k_norm)),
    ("no QK-norm in M", "qwen3", lambda h: replace(h, k_norm=None)),
]


@pytest.mark.parametrize(("name", "fault"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_wrong_description_raises(name: str, fault: Break) -> None:
    with pytest.raises(
        RheoscopeError, match=r"the description of .* does not reproduce this model: .*; please report the config"
    ) as error:
        certify(with_fault(name, fault))
    assert "\n" not in str(error.value)


def test_wrong_description_raises_in_float16_too() -> None:
    for _, name, fault in FAULTS:
        with pytest.raises(
            RheoscopeError, match=r"does not reproduce this model: .*, but rounding in float16 explains at most 3.9e-03"
        ):
            certify(with_fault(name, fault, torch.float16))


@pytest.mark.parametrize("name", EVERY)
def test_correct_description_passes(name: str) -> None:
    certificate = model(name).view.facts["certificate"]
    assert isinstance(certificate, Certificate)
    assert certificate.n_tokens == PROBE_TOKENS
    assert certificate.dtype == "float32"
    assert certificate.weights_error <= 1e-6
    assert certificate.closure_error <= 1e-6
    assert certificate.operators_error <= 1e-5
    double = model(name, torch.float64).view.facts["certificate"]
    assert double.dtype == "float64"
    assert double.operators_error <= (1e-5 if name in ISLANDS else 1e-12)


@pytest.mark.parametrize("layer", [0, 1])
def test_faults_and_nan_are_found_in_every_layer(layer: int) -> None:
    loaded_model = model("gpt2")
    for fault in (lambda h: replace(h, b_O=torch.full((32,), torch.nan)), lambda h: replace(h, W_O=h.W_O.flip(0))):
        blocks = list(loaded_model.view.layer_heads)
        blocks[layer] = fault(blocks[layer])
        with pytest.raises(RheoscopeError, match="does not reproduce this model"):
            certify(replace(loaded_model, view=replace(loaded_model.view, layer_heads=tuple(blocks))))


def test_closure_error_is_relative_to_the_displacement() -> None:
    trace = traced("gpt2")
    assert closure_error(trace, 0) < 1e-6
    without_bias = replace(trace.view.layer_heads[0], b_O=None)
    faulty_trace = replace(trace, view=replace(trace.view, layer_heads=(without_bias, *trace.view.layer_heads[1:])))
    displacement = trace.points[1] - trace.points[0]
    relative_error = float((trace.bias(0).norm() / displacement.norm()).detach())
    assert closure_error(faulty_trace, 0) == pytest.approx(relative_error, rel=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_displacement_below_the_rounding_of_the_stream_is_no_fault(dtype: str) -> None:
    """Trained models have tokens of huge norm, for which x + Delta is rounded by more than the tolerance times Delta."""
    net = copy.deepcopy(network("llama"))
    with torch.no_grad():
        net.model.embed_tokens.weight.mul_(3e4)
    loaded_model = rs.load(net, dtype=dtype)
    trace = loaded_model.trace([5, 6, 7])
    assert float((trace.points[1] - trace.points[0]).norm() / trace.points[0].norm()) < 1e-2
    fault = replace(loaded_model.view.layer_heads[0], W_O=1e3 * loaded_model.view.layer_heads[0].W_O)
    with pytest.raises(RheoscopeError, match="does not reproduce this model"):
        certify(
            replace(
                loaded_model, view=replace(loaded_model.view, layer_heads=(fault, *loaded_model.view.layer_heads[1:]))
            )
        )


def test_certificate_is_one_line() -> None:
    line = str(Certificate(1e-7, 2e-7, 3e-7, 8, "float32"))
    assert "\n" not in line
    assert line.startswith("exact on 8 tokens in float32: weights off by 1.0e-07, closure by 2.0e-07")
    assert str(Certificate(0.0, 0.0, 0.0, 8, "bfloat16", device="cuda:0")).startswith(
        "exact up to the rounding of bfloat16 (7.8e-03) on 8 tokens, on cuda:0: weights"
    )


def test_certificate_lists_ignored_weights() -> None:
    one_ignored = Certificate(0.0, 0.0, 0.0, 8, "float32", ("score.weight",))
    assert str(one_ignored).endswith("operators by 0.0e+00; ignored weights outside the stream: score.weight")
    five_ignored = Certificate(0.0, 0.0, 0.0, 8, "float32", ("a", "b", "c", "d", "e"))
    assert str(five_ignored).endswith("; ignored weights outside the stream: a, b, c and 2 more")


def test_short_context_is_certified_on_fewer_tokens() -> None:
    short = randomised(hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2 | {"n_positions": 3})))
    assert rs.load(short).view.facts["certificate"].n_tokens == 3


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "bert"])
def test_all_weights_equal_those_of_each_head(name: str) -> None:
    trace = traced(name)
    block, head_weights = trace.view.layer_heads[1], [trace.weights(1, head) for head in range(trace.view.heads)]
    assert torch.equal(block.all_weights(trace.layer_input(1)), torch.stack(head_weights))
