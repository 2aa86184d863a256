"""The finder gives the same View as the files of the families, which people wrote."""

from typing import Any

import pytest
import torch

from rheoscope.pretrained.families import FAMILIES
from rheoscope.pretrained.finder import describe_network
from tests.pretrained.cases import gap, network, text, traced

COMPARED = (
    "gpt2_by_depth",
    "llama_yarn",
    "qwen2",
    "qwen3",
    "neox",
    "opt_projected",
    "gemma3",
    "phi3_partial",
    "bert",
    "roberta",
)


@pytest.mark.parametrize("name", COMPARED)
def test_the_finder_describes_a_network_as_its_family_does(name: str) -> None:
    net = network(name)
    written, recorded = FAMILIES[net.config.model_type].describe(net), describe_network.describe(net)
    assert [str(tap.step) for taps in recorded.layer_taps for tap in taps] == [
        str(tap.step) for taps in written.layer_taps for tap in taps
    ]
    assert [tap.module for taps in recorded.layer_taps for tap in taps if tap.side == "in"] == [
        tap.module for taps in written.layer_taps for tap in taps if tap.side == "in"
    ]
    assert (recorded.is_encoder, recorded.output_projections) == (written.is_encoder, written.output_projections)
    assert (recorded.embed_projection is None) == (written.embed_projection is None)
    assert (recorded.prediction_head is None) == (written.prediction_head is None)
    trace = traced(name)
    for layer, (x, y) in enumerate(zip(recorded.layer_heads, written.layer_heads, strict=True)):
        points = trace.layer_input(layer)
        assert_same_heads(x, y, points)
        assert gap(recorded.mlps[layer](points), written.mlps[layer](points)) <= 1e-6
    assert gap(recorded.final_norm.apply(trace.points[-1]), written.final_norm.apply(trace.points[-1])) <= 1e-6


def assert_same_heads(recorded: Any, written: Any, points: torch.Tensor) -> None:
    """The same M, F, weights and displacements, and the same kind of mask."""
    assert gap(recorded.all_weights(points), written.all_weights(points)) <= 2e-6
    assert gap(recorded.displacements(points), written.displacements(points)) <= 1e-5
    assert gap(recorded.bias(points), written.bias(points)) <= 1e-6
    for offset in (0, 3):
        assert gap(dense(recorded.M(), offset), dense(written.M(), offset)) <= 1e-5
    assert gap(recorded.F().left @ recorded.F().right, written.F().left @ written.F().right) <= 1e-5
    positions = torch.arange(len(text()))
    assert torch.equal(recorded.mechanism.mask(positions, positions), written.mechanism.mask(positions, positions))


def dense(M: Any, offset: int) -> torch.Tensor:
    return M(offset).left @ M(offset).right
