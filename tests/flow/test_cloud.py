"""Clouds: the right points, the right tokens, the right space, and one line for what cannot be."""

from dataclasses import replace

import pytest
import torch

import rheoscope as rs
from rheoscope.flow.cloud import select_clouds
from tests.pretrained.cases import traced

F64 = torch.float64


def test_grains_take_every_step_or_the_ends_of_layers() -> None:
    trace = traced("gpt2", F64)
    assert select_clouds(trace, keep_massive=True).steps == tuple(map(str, trace.steps))
    layers = select_clouds(trace, grain="layer", keep_massive=True)
    assert layers.steps == ("embed", *(f"L{layer}.resid_post" for layer in range(trace.view.layers)))
    assert torch.equal(layers.points[-1], trace.points[-1])
    with pytest.raises(rs.RheoscopeError, match="unknown grain 'head'; type 'layer' or 'half'"):
        select_clouds(trace, grain="head")


@pytest.mark.parametrize("name", ["gpt2", "llama", "opt_post"])
def test_layers_of_any_block_end_where_the_next_begins(name: str) -> None:
    trace = traced(name, F64)
    seen = select_clouds(trace, grain="layer", keep_massive=True)
    for layer in range(1, trace.view.layers):
        assert torch.equal(seen.points[layer], trace.layer_input(layer))


def test_spaces() -> None:
    trace = traced("gpt2", F64)
    raw, normed, sphere = (
        select_clouds(trace, space, keep_massive=True).points for space in ("raw", "normed", "sphere")
    )
    assert torch.equal(raw, trace.points)
    assert torch.allclose(normed, trace.view.final_norm.apply(trace.points))
    assert torch.allclose(sphere * raw.norm(dim=-1, keepdim=True), raw)
    half = replace(trace, points=trace.points.bfloat16())
    assert select_clouds(half, keep_massive=True).points.dtype is torch.float32


def test_massive_tokens_are_dropped_and_listed() -> None:
    trace = traced("gpt2", F64)
    points = trace.points.clone()
    points[2, 1] *= 1000
    seen = select_clouds(replace(trace, points=points))
    assert seen.attributes["massive"] == [1]
    assert 1 not in seen.positions
    assert seen.points.shape[1] == len(trace) - 1
    assert seen.token_texts == [word for at, word in enumerate(trace.tokens) if at != 1]
    assert select_clouds(replace(trace, points=points), keep_massive=True).positions == list(range(len(trace)))
    assert seen.attributes["weights"] == trace.facts["weights"]
    with pytest.raises(rs.RheoscopeError, match=r"at least 99 tokens that are not massive, got \d+; use a longer text"):
        select_clouds(trace, min_tokens=99)
