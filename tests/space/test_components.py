"""The parts of every point add up to it, in every family, for every step and some tokens."""

import pytest
import torch

import rheoscope as rs
from rheoscope.space.components import components, mlp_at
from tests.cases import EVERY, PARALLEL, POST_NORM, distance, double, gap, ours, traced
from tests.models import test_encoder_decoder as linked

F64 = torch.float64


def within(name: str) -> float:
    """Gemma's norm after attention takes a float32 step."""
    return 1e-6 if name.startswith("gemma") else 1e-10


@pytest.mark.parametrize("name", EVERY)
def test_the_parts_of_every_point_add_up_to_it(name: str) -> None:
    trace = traced(name, F64)
    for step in trace.steps:
        found = components(trace, step, [0, -1, 5])
        assert distance(found.parts.sum(0), trace.at(step)[[0, len(trace) - 1, 5]]) <= within(name)
        assert len(set(found.names)) == len(found.names) == len(found.parts)
    assert gap(components(trace).parts[:, [3]], components(trace, tokens=[3]).parts) <= 1e-12


@pytest.mark.parametrize("name", EVERY)
def test_heads_are_what_F_makes_of_the_tokens_and_biases_what_is_left(name: str) -> None:
    """Σ_j α_ij x̂_j F_h, by the dense operator."""
    trace = traced(name, F64)
    for layer, block in enumerate(trace.view.blocks):
        moved, bias = trace.parts(layer)
        x = trace.read_by(layer)
        content = block.F().apply(block.norm.hat(x))
        weights = torch.stack([trace.weights(layer, head) for head in range(block.count)])
        wanted = block.gated(weights @ content, x)
        if block.after is not None:
            total = (block.outputs(x) @ block.W_O).sum(0)
            wanted = wanted * (total.square().mean(-1, keepdim=True) + block.after.eps).rsqrt()
        assert distance(moved, wanted) <= 1e-5
        whole = trace.displacements(layer).sum(0) + trace.bias(layer)
        assert distance(moved.sum(0) + bias, whole) <= 1e-10
        if block.value_bias is not None:
            assert distance(moved, trace.displacements(layer)) > 1e-3


@pytest.mark.parametrize("name", EVERY)
def test_names_say_what_there_is(name: str) -> None:
    trace = traced(name, F64)
    names = components(trace).names
    blocks = trace.view.blocks
    biased = blocks[0].b_O is not None or blocks[0].value_bias is not None
    per_layer = [*(f"H{head}" for head in range(4)), *(["bias"] if biased else [])]
    per_layer += ["norm_attention", "mlp", "norm_mlp"] if name in POST_NORM else ["mlp"]
    start = ["embed", "position"] if has_position(name) else ["embed"]
    assert list(names) == start + [f"L{layer}.{part}" for layer in range(len(blocks)) for part in per_layer]


def has_position(name: str) -> bool:
    if name in ours.CASES:
        return ours.CASES[name].position in {"learned", "sinusoidal"}
    return name.startswith(("gpt2", "opt", "bert", "roberta"))


@pytest.mark.parametrize("name", EVERY)
def test_the_mlp_is_what_the_models_own_mlp_adds(name: str) -> None:
    trace = traced(name, F64)
    for layer in range(trace.view.layers):
        found = components(trace, trace.steps[mlp_at(trace, layer)])
        read = trace.read_by(layer) if name in PARALLEL else trace.at(f"L{layer}.resid_mid")
        with torch.no_grad():
            own = trace.view.mlps[layer](read)
        assert found.names[-1] == f"L{layer}.mlp"
        assert distance(found.parts[-1], own) <= 1e-10


@pytest.mark.parametrize("name", list(linked.CASES))
def test_decoders_that_read_a_source_have_the_heads_of_cross_attention_too(name: str) -> None:
    both = linked.traced(name, F64)
    for trace in (both.source, both.target):
        for step in trace.steps:
            assert distance(components(trace, step).parts.sum(0), trace.at(step)) <= 1e-10
    found = components(both.target)
    assert {"L0.H1", "L0.cross.H1", "L1.cross.H3", "L1.mlp"} <= set(found.names)
    assert ("L0.cross.bias" in found.names) == linked.CASES[name].bias
    at = found.names.index("L1.cross.H2")
    if both.target.view.crossing[1].answering.value_bias is None:
        assert distance(found.parts[at], both.target.cross_displacements(1)[2]) <= 1e-12
    read = both.target.at("L1.resid_cross")
    with torch.no_grad():
        assert distance(found.parts[found.names.index("L1.mlp")], both.target.view.mlps[1](read)) <= 1e-10


def test_embed_is_the_row_of_the_table_and_position_the_same_for_every_text() -> None:
    for name in ("gpt2", "opt", "own_biased"):
        one, other = (components(traced(name, F64, seed), "embed") for seed in (0, 1))
        assert one.names == ("embed", "position")
        assert gap(one.parts[1], other.parts[1]) <= 1e-12
        assert gap(one.parts[0], double(name).view.embed[traced(name, F64).ids]) <= 1e-12
    assert components(traced("gemma3", F64), "embed").names == ("embed",)


def test_what_is_not_there_is_refused() -> None:
    trace = traced("gpt2", F64)
    with pytest.raises(rs.RheoscopeError, match="there is no step 'L9"):
        components(trace, "L9.resid_mid")
    with pytest.raises(rs.RheoscopeError, match="there is no token 18; this text has tokens 0 to 17"):
        components(trace, tokens=[18])
    assert gap(components(trace, tokens=[-1]).parts, components(trace, tokens=[17]).parts) == 0
