"""A gradient taken back half-layer by half-layer: that of the whole model, in every family whose stream is a sum."""

import pytest
import torch

from rheoscope.running import stream_pullback
from rheoscope.running.stream_pullback import adds_up, pulled_back
from rheoscope.space.traces import Traces
from tests.cases import EVERY, POST_NORM, distance, double, random, text, traced

F64 = torch.float64
SUMS = [name for name in EVERY if name not in POST_NORM]


@pytest.mark.parametrize("name", SUMS)
def test_it_equals_the_gradient_through_the_whole_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_pullback, "numbers_at_once", lambda device: 7 * stream_pullback.WIDER * 32)
    model, trace = double(name), traced(name, F64)
    weight = random(0, *model.run(text()).shape)
    _, whole = model.gradients(text(), lambda logits: (logits * weight).sum())
    found = pulled_back(Traces.of(trace), whole[str(trace.steps[-1])][None])
    for layer, (g,) in enumerate(found):
        middle = trace.steps[trace.middle[layer]]
        written = trace.steps[trace.middle[layer] + 1] if middle in trace.not_read else middle
        assert distance(g, whole[str(written)]) <= (1e-5 if name.startswith("gemma") else 1e-9)


@pytest.mark.parametrize("name", EVERY)
def test_it_knows_where_norms_follow_sums(name: str) -> None:
    assert adds_up(traced(name, F64)) == (name not in POST_NORM)
