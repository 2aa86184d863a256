"""The components of every point add up to it, in every family, at every step."""

import pytest
import torch

import rheoscope as rs
from rheoscope.space.components import components, mlp_step
from tests.cases import EVERY, PARALLEL, POST_NORM, distance, double, gap, ours, traced
from tests.models import test_encoder_decoder as linked

F64 = torch.float64


def tolerance(name: str) -> float:
    """Gemma's norm after attention computes in float32."""
    return 1e-6 if name.startswith("gemma") else 1e-10


@pytest.mark.parametrize("name", EVERY)
def test_components_of_every_point_add_up_to_it(name: str) -> None:
    trace = traced(name, F64)
    for step in trace.steps:
        result = components(trace, step, [0, -1, 5])
        assert distance(result.parts.sum(0), trace.points_at(step)[[0, len(trace) - 1, 5]]) <= tolerance(name)
        assert len(set(result.names)) == len(result.names) == len(result.parts)
    assert gap(components(trace).parts[:, [3]], components(trace, tokens=[3]).parts) <= 1e-12


@pytest.mark.parametrize("name", EVERY)
def test_head_parts_equal_the_dense_F_and_biases_are_the_rest(name: str) -> None:
    """Σ_j α_ij x̂_j F_h, by the dense operator."""
    trace = traced(name, F64)
    for layer, block in enumerate(trace.view.layer_heads):
        displacements, bias = trace.attention_parts(layer)
        x = trace.layer_input(layer)
        content = block.F().apply(block.norm.normalise(x))
        weights = torch.stack([trace.weights(layer, head) for head in range(block.n_heads)])
        expected = block.apply_gate(weights @ content, x)
        if block.output_norm is not None:
            total = (block.outputs(x) @ block.W_O).sum(0) + (0 if block.b_O is None else block.b_O)
            expected = expected * (total.square().mean(-1, keepdim=True) + block.output_norm.eps).rsqrt()
        assert distance(displacements, expected) <= 1e-5
        total_displacement = trace.displacements(layer).sum(0) + trace.bias(layer)
        assert distance(displacements.sum(0) + bias, total_displacement) <= 1e-10
        if block.value_bias is not None:
            assert distance(displacements, trace.displacements(layer)) > 1e-3


@pytest.mark.parametrize("name", EVERY)
def test_names_list_every_component(name: str) -> None:
    trace = traced(name, F64)
    names = components(trace).names
    blocks = trace.view.layer_heads
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
def test_mlp_part_equals_the_models_own_mlp(name: str) -> None:
    trace = traced(name, F64)
    for layer in range(trace.view.layers):
        result = components(trace, trace.steps[mlp_step(trace, layer)])
        mlp_input = trace.layer_input(layer) if name in PARALLEL else trace.points_at(f"L{layer}.resid_mid")
        with torch.no_grad():
            mlp_output = trace.view.mlps[layer](mlp_input)
        assert result.names[-1] == f"L{layer}.mlp"
        assert distance(result.parts[-1], mlp_output) <= 1e-10


@pytest.mark.parametrize("name", list(linked.CASES))
def test_decoders_have_components_of_cross_attention(name: str) -> None:
    pair = linked.traced(name, F64)
    for trace in (pair.source, pair.target):
        for step in trace.steps:
            assert distance(components(trace, step).parts.sum(0), trace.points_at(step)) <= 1e-10
    result = components(pair.target)
    assert {"L0.H1", "L0.cross.H1", "L1.cross.H3", "L1.mlp"} <= set(result.names)
    assert ("L0.cross.bias" in result.names) == linked.CASES[name].bias
    index = result.names.index("L1.cross.H2")
    if pair.target.view.cross_heads[1].source_heads.value_bias is None:
        assert distance(result.parts[index], pair.target.cross_displacements(1)[2]) <= 1e-12
    mlp_input = pair.target.points_at("L1.resid_cross")
    with torch.no_grad():
        assert distance(result.parts[result.names.index("L1.mlp")], pair.target.view.mlps[1](mlp_input)) <= 1e-10


def test_embed_is_the_table_row_and_position_is_the_same_for_every_text() -> None:
    for name in ("gpt2", "opt", "own_biased"):
        first, second = (components(traced(name, F64, seed), "embed") for seed in (0, 1))
        assert first.names == ("embed", "position")
        assert gap(first.parts[1], second.parts[1]) <= 1e-12
        assert gap(first.parts[0], double(name).view.embed[traced(name, F64).ids]) <= 1e-12
    assert components(traced("gemma3", F64), "embed").names == ("embed",)


def test_missing_steps_and_tokens_raise() -> None:
    trace = traced("gpt2", F64)
    with pytest.raises(rs.RheoscopeError, match="there is no step 'L9"):
        components(trace, "L9.resid_mid")
    with pytest.raises(rs.RheoscopeError, match="there is no token 18; this text has tokens 0 to 17"):
        components(trace, tokens=[18])
    assert gap(components(trace, tokens=[-1]).parts, components(trace, tokens=[17]).parts) == 0
