"""Tests of the selection of clouds: grain, space, massive tokens and errors."""

from dataclasses import replace

import pytest
import torch

import rheoscope as rs
from rheoscope.flow.cloud import select_clouds
from tests.pretrained.cases import traced

F64 = torch.float64


def test_grain_selects_every_step_or_the_ends_of_layers() -> None:
    trace = traced("gpt2", F64)
    assert select_clouds(trace, keep_massive=True).steps == tuple(map(str, trace.steps))
    layers = select_clouds(trace, grain="layer", keep_massive=True)
    assert layers.steps == ("embed", *(f"L{layer}.resid_post" for layer in range(trace.view.layers)))
    assert torch.equal(layers.points[-1], trace.points[-1])
    with pytest.raises(rs.RheoscopeError, match="grain must be one of layer, half, got 'head'; type grain='layer'"):
        select_clouds(trace, grain="head")


@pytest.mark.parametrize("name", ["gpt2", "llama", "opt_post"])
def test_the_end_of_a_layer_is_the_input_of_the_next(name: str) -> None:
    trace = traced(name, F64)
    clouds = select_clouds(trace, grain="layer", keep_massive=True)
    for layer in range(1, trace.view.layers):
        assert torch.equal(clouds.points[layer], trace.layer_input(layer))


def test_points_in_each_space() -> None:
    trace = traced("gpt2", F64)
    raw, normed, sphere = (
        select_clouds(trace, space, keep_massive=True).points for space in ("raw", "normed", "sphere")
    )
    assert torch.equal(raw, trace.points)
    assert torch.allclose(normed, trace.view.final_norm.apply(trace.points))
    assert torch.allclose(sphere * raw.norm(dim=-1, keepdim=True), raw)
    half = replace(trace, points=trace.points.bfloat16())
    assert select_clouds(half, keep_massive=True).points.dtype is torch.float32


def test_massive_tokens_are_left_out_and_listed() -> None:
    trace = traced("gpt2", F64)
    points = trace.points.clone()
    points[2, 1] *= 1000
    clouds = select_clouds(replace(trace, points=points))
    assert clouds.attributes["massive"] == [1]
    assert 1 not in clouds.positions
    assert clouds.points.shape[1] == len(trace) - 1
    assert clouds.token_texts == [token_text for position, token_text in enumerate(trace.tokens) if position != 1]
    assert select_clouds(replace(trace, points=points), keep_massive=True).positions == list(range(len(trace)))
    assert clouds.attributes["weights"] == trace.facts["weights"]
    with pytest.raises(rs.RheoscopeError, match=r"at least 99 tokens that are not massive, got \d+; use a longer text"):
        select_clouds(trace, min_tokens=99)
