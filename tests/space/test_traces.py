"""A batch of texts equals each text alone."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

import rheoscope as rs
from rheoscope.space.model import check_same_weights
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from tests.attention.cases import gap
from tests.pretrained.cases import model, text

LENGTHS = [7, 12, 1]


def batch(name: str = "llama", logits: bool = True) -> Traces:
    return model(name).trace([text(seed, n) for seed, n in enumerate(LENGTHS)], logits=logits)


def test_traces_are_a_sequence() -> None:
    traces = batch()
    assert isinstance(traces, Sequence)
    assert len(traces) == len(list(traces)) == 3
    assert [len(trace) for trace in traces] == LENGTHS
    assert all(isinstance(trace, Trace) for trace in traces)
    assert traces[-1] is traces[2]
    with pytest.raises(IndexError):
        traces[3]


@pytest.mark.parametrize("name", ["llama", "neox"])
def test_every_text_equals_itself_alone(name: str) -> None:
    for seed, trace in enumerate(batch(name)):
        alone = model(name).trace(text(seed, LENGTHS[seed]), logits=True)
        assert gap(trace.points, alone.points) <= 1e-5
        assert gap(trace.logits, alone.logits) <= 1e-5
        assert torch.equal(trace.ids, alone.ids)
        for field in ("steps", "tokens", "text", "input_steps", "mid_steps", "unread_steps", "facts"):
            assert getattr(trace, field) == getattr(alone, field), field


def test_tensors_hold_the_traces_and_their_padding() -> None:
    traces = batch()
    assert traces.points.shape == (3, len(traces.steps), 12, traces.view.width)
    assert traces.points.transpose(0, 1).is_contiguous()  # the clouds of one step are contiguous
    assert traces.lengths.tolist() == traces.is_token.sum(-1).tolist() == LENGTHS
    assert traces.is_token[0].tolist() == [True] * 7 + [False] * 5
    assert traces.logits is not None
    for i, trace in enumerate(traces):
        assert torch.equal(traces.ids[i][traces.is_token[i]], trace.ids)
        assert not traces.ids[i][~traces.is_token[i]].any()
        assert trace.points.untyped_storage().data_ptr() == traces.points.untyped_storage().data_ptr()
        assert torch.equal(traces.points[i, :, traces.is_token[i]], trace.points)
        assert torch.equal(traces.logits[i, traces.is_token[i]], trace.logits)
    assert batch(logits=False).logits is None


def test_slice_is_traces() -> None:
    traces = batch()
    sliced = traces[1:]
    assert isinstance(sliced, Traces)
    assert [len(trace) for trace in sliced] == LENGTHS[1:]
    assert torch.equal(sliced[0].points, traces[1].points)
    assert torch.equal(sliced.logits, traces.logits[1:])
    assert len(traces[:0]) == 0
    assert [len(trace) for trace in traces[::2]] == [7, 1]
    with pytest.raises(rs.RheoscopeError, match=r"needs a positive step, got -1; type list\(traces\)"):
        traces[::-1]


def test_traces_cache_their_displacements() -> None:
    traces = batch()
    assert traces[0].factored_displacements(0) is traces[0].factored_displacements(0)


@pytest.mark.parametrize("name", ["llama", "bert", "gemma3"])
def test_valid_tokens_and_displacements_equal_those_of_each_text_alone(name: str) -> None:
    """Also for padding in a bidirectional model, and with a massive token in one text."""
    traces = model(name, torch.float64).trace([text(seed, n) for seed, n in enumerate((7, 12, 9))])
    traces.points[1, 2, 4] *= 50
    for keep in (False, True):
        for i, trace in enumerate(traces):
            n = len(trace)
            assert torch.equal(traces.valid_mask(keep)[i, :n], trace.valid_mask(keep))
            assert not traces.valid_mask(keep)[i, n:].any()
        assert traces.min_valid_tokens(keep) == min(int(trace.valid_mask(keep).sum()) for trace in traces)
    assert traces.massive_tokens().nonzero().tolist() == [
        [i, token] for i, trace in enumerate(traces) for token in trace.massive_tokens()
    ]
    for layer in range(traces.view.layers):
        batched = traces.factored_displacements(layer)
        assert traces.factored_displacements(layer) is batched
        for i, trace in enumerate(traces):
            alone, n = trace.factored_displacements(layer), len(trace)
            assert gap(batched.mixed_values[i, :, :n], alone.mixed_values) <= 1e-10
            assert gap(batched.constants[i, :n], alone.constants) <= 1e-6  # a norm after attention computes in float32


def test_no_mask_if_every_token_is_valid() -> None:
    traces = model("llama").trace([text(0, 9), text(1, 9)])
    assert traces.valid_tokens(keep_massive=True) is None
    assert traces.is_unpadded
    assert Traces.from_trace(traces[0]).valid_tokens(keep_massive=True) is None
    assert batch().valid_tokens(keep_massive=True) is not None
    with pytest.raises(rs.RheoscopeError, match="at least 2 tokens that are not massive, got 1"):
        batch().valid_tokens(keep_massive=True, min_tokens=2)
    traces.points[1, 0, 0, 0] = torch.inf
    with pytest.raises(rs.RheoscopeError, match="NaN or infinity"):
        replace(traces).valid_tokens()


def test_trace_of_other_weights_raises() -> None:
    trace = model("llama").trace(text())
    check_same_weights(model("llama"), trace)
    with pytest.raises(
        rs.RheoscopeError, match=r"this trace comes from weights .*, but the model has weights .*; type model.trace"
    ):
        check_same_weights(model("gpt2"), trace)
    with pytest.raises(rs.RheoscopeError, match=r"expected a Trace, got Traces; type model.trace\(text\)"):
        check_same_weights(model("llama"), batch())
