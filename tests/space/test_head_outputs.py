"""Head outputs recorded in the forward pass equal those recomputed from the points."""

from dataclasses import replace

import pytest
import torch

from rheoscope.space.head_contributions import FactoredDisplacements
from rheoscope.space.view import View
from tests.cases import double, text

LENGTHS = (9, 6)
FAMILIES = ["gpt2", "llama", "gemma3", "opt", "neox", "bert", "phi3", "qwen3", "own_metric", "own_relu", "own_gated"]
"""Families that cover every kind of output projection."""
NOT_RECORDED = {"own_relu", "own_gated"}
"""Weights that do not sum to 1, and gates: the constant part of the values differs between tokens."""


@pytest.fixture
def record_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record outputs as for a half-precision model on a GPU, but in float64, without rounding."""
    monkeypatch.setattr(View, "uses_half_precision", property(lambda self: True))


def assert_equal(a: FactoredDisplacements, b: FactoredDisplacements, n: int) -> None:
    for x, y in (
        (a.mixed_values[..., :n, :], b.mixed_values[..., :n, :]),
        (a.constants[..., :n, :], b.constants[..., :n, :]),
    ):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-11)
    assert torch.equal(a.output_map, b.output_map)


@pytest.mark.usefixtures("record_outputs")
@pytest.mark.parametrize("name", FAMILIES)
def test_recorded_outputs_equal_recomputed_ones(name: str) -> None:
    traces = double(name).trace([text(seed, n) for seed, n in enumerate(LENGTHS)])
    again = replace(traces)
    for layer in range(traces.view.layers):
        assert (traces.outputs(layer) is None) == (name in NOT_RECORDED)
        assert again.outputs(layer) is None
        assert_equal(traces[1:].factored_displacements(layer), again[1:].factored_displacements(layer), LENGTHS[1])
        assert_equal(traces[1].factored_displacements(layer), again[1].factored_displacements(layer), LENGTHS[1])


@pytest.mark.usefixtures("record_outputs")
def test_edited_model_records_no_outputs() -> None:
    model = double("gpt2")
    ablated = model.trace(text(0, 9), edit={(1, 0): lambda q, k, v, mechanism: torch.zeros_like(q)})
    assert ablated.outputs(1) is None
    assert ablated.factored_displacements(1).mixed_values[0].norm() > 0


def test_float32_model_records_no_outputs() -> None:
    assert double("gpt2").trace(text(0, 9)).outputs(0) is None
