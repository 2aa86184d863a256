"""What heads gave in the forward pass, kept beside the points: the same as computed again from the points."""

from dataclasses import replace

import pytest
import torch

from rheoscope.space.head_contributions import Carried
from rheoscope.space.view import View
from tests.cases import double, text

LENGTHS = (9, 6)
FAMILIES = ["gpt2", "llama", "gemma3", "opt", "neox", "bert", "phi3", "qwen3", "own_metric", "own_relu", "own_gated"]
"""Every place that outputs pass."""
NOT_KEPT = {"own_relu", "own_gated"}
"""Weights that do not sum to 1, and gates: what values have in common differs from token to token."""


@pytest.fixture
def keeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a model in half precision runs on a GPU, but in float64: nothing is rounded."""
    monkeypatch.setattr(View, "reads_half", property(lambda self: True))


def alike(a: Carried, b: Carried, n: int) -> None:
    for one, other in ((a.moved[..., :n, :], b.moved[..., :n, :]), (a.rest[..., :n, :], b.rest[..., :n, :])):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    assert torch.equal(a.write, b.write)


@pytest.mark.usefixtures("keeping")
@pytest.mark.parametrize("name", FAMILIES)
def test_what_heads_gave_is_what_they_would_give_again(name: str) -> None:
    traces = double(name).trace([text(at, n) for at, n in enumerate(LENGTHS)])
    again = replace(traces)
    for layer in range(traces.view.layers):
        assert (traces.outputs(layer) is None) == (name in NOT_KEPT)
        assert again.outputs(layer) is None
        alike(traces[1:].carried(layer), again[1:].carried(layer), LENGTHS[1])
        alike(traces[1].carried(layer), again[1].carried(layer), LENGTHS[1])


@pytest.mark.usefixtures("keeping")
def test_an_edited_model_keeps_none_since_a_view_knows_no_edit() -> None:
    model = double("gpt2")
    silent = model.trace(text(0, 9), edit={(1, 0): lambda q, k, v, mechanism: torch.zeros_like(q)})
    assert silent.outputs(1) is None
    assert silent.carried(1).moved[0].norm() > 0


def test_in_float32_or_better_nothing_is_kept() -> None:
    assert double("gpt2").trace(text(0, 9)).outputs(0) is None
