"""Backpropagation by half-layers equals the gradient of the whole model, in every family whose stream is a sum."""

import pytest
import torch

from rheoscope.running import stream_pullback
from rheoscope.running.stream_pullback import is_residual_sum, pull_back_gradient
from rheoscope.space.traces import Traces
from tests.cases import EVERY, POST_NORM, distance, double, random, text, traced

F64 = torch.float64
SUMS = [name for name in EVERY if name not in POST_NORM]


@pytest.mark.parametrize("name", SUMS)
def test_pullback_equals_the_gradient_of_the_whole_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_pullback, "block_numel", lambda device: 7 * stream_pullback.MLP_MEMORY_FACTOR * 32)
    model, trace = double(name), traced(name, F64)
    weight = random(0, *model.run(text()).shape)
    _, expected = model.gradients(text(), lambda logits: (logits * weight).sum())
    gradients = pull_back_gradient(Traces.from_trace(trace), expected[str(trace.steps[-1])][None])
    for layer, (g,) in enumerate(gradients):
        middle = trace.steps[trace.mid_steps[layer]]
        output_step = trace.steps[trace.mid_steps[layer] + 1] if middle in trace.unread_steps else middle
        assert distance(g, expected[str(output_step)]) <= (1e-5 if name.startswith("gemma") else 1e-9)


@pytest.mark.parametrize("name", EVERY)
def test_only_pre_norm_models_are_residual_sums(name: str) -> None:
    assert is_residual_sum(traced(name, F64)) == (name not in POST_NORM)
