"""Many texts as one value, against each of them alone."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

import rheoscope as rs
from rheoscope.space.model import check_made_by
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from tests.attention.cases import gap
from tests.pretrained.cases import model, text

LENGTHS = [7, 12, 1]


def batch(name: str = "llama", logits: bool = True) -> Traces:
    return model(name).trace([text(seed, n) for seed, n in enumerate(LENGTHS)], logits=logits)


def test_it_is_a_sequence_of_traces() -> None:
    traces = batch()
    assert isinstance(traces, Sequence)
    assert len(traces) == len(list(traces)) == 3
    assert [len(trace) for trace in traces] == LENGTHS
    assert all(isinstance(trace, Trace) for trace in traces)
    assert traces[-1] is traces[2]
    with pytest.raises(IndexError):
        traces[3]


@pytest.mark.parametrize("name", ["llama", "neox"])
def test_every_text_is_what_it_is_alone(name: str) -> None:
    for seed, trace in enumerate(batch(name)):
        alone = model(name).trace(text(seed, LENGTHS[seed]), logits=True)
        assert gap(trace.points, alone.points) <= 1e-5
        assert gap(trace.logits, alone.logits) <= 1e-5
        assert torch.equal(trace.ids, alone.ids)
        for field in ("steps", "tokens", "text", "where", "middle", "not_read", "facts"):
            assert getattr(trace, field) == getattr(alone, field), field


def test_its_tensors_hold_the_traces_and_their_padding() -> None:
    traces = batch()
    assert traces.points.shape == (3, len(traces.steps), 12, traces.view.width)
    assert traces.points.transpose(0, 1).is_contiguous()  # the clouds of all texts after one step side by side
    assert traces.lengths.tolist() == traces.real.sum(-1).tolist() == LENGTHS
    assert traces.real[0].tolist() == [True] * 7 + [False] * 5
    assert traces.logits is not None
    for at, trace in enumerate(traces):
        assert torch.equal(traces.ids[at][traces.real[at]], trace.ids)
        assert not traces.ids[at][~traces.real[at]].any()
        assert trace.points.untyped_storage().data_ptr() == traces.points.untyped_storage().data_ptr()
        assert torch.equal(traces.points[at, :, traces.real[at]], trace.points)
        assert torch.equal(traces.logits[at, traces.real[at]], trace.logits)
    assert batch(logits=False).logits is None


def test_a_slice_is_traces_again() -> None:
    traces = batch()
    some = traces[1:]
    assert isinstance(some, Traces)
    assert [len(trace) for trace in some] == LENGTHS[1:]
    assert torch.equal(some[0].points, traces[1].points)
    assert torch.equal(some.logits, traces.logits[1:])
    assert len(traces[:0]) == 0
    assert [len(trace) for trace in traces[::2]] == [7, 1]
    with pytest.raises(rs.RheoscopeError, match=r"goes forward, got a step of -1; type list\(traces\)"):
        traces[::-1]


def test_what_a_trace_has_computed_is_kept() -> None:
    traces = batch()
    assert traces[0].carried(0) is traces[0].carried(0)


@pytest.mark.parametrize("name", ["llama", "bert", "gemma3"])
def test_tokens_that_count_and_what_heads_carried_are_those_of_each_alone(name: str) -> None:
    """Padding beside a text that is read both ways too; a massive token in one of them."""
    traces = model(name, torch.float64).trace([text(seed, n) for seed, n in enumerate((7, 12, 9))])
    traces.points[1, 2, 4] *= 50
    for keep in (False, True):
        for at, trace in enumerate(traces):
            n = len(trace)
            assert torch.equal(traces.ordinary(keep)[at, :n], trace.ordinary(keep))
            assert not traces.ordinary(keep)[at, n:].any()
        assert traces.fewest(keep) == min(int(trace.ordinary(keep).sum()) for trace in traces)
    assert traces.massive().nonzero().tolist() == [[at, i] for at, trace in enumerate(traces) for i in trace.massive()]
    for layer in range(traces.view.layers):
        made = traces.carried(layer)
        assert traces.carried(layer) is made
        for at, trace in enumerate(traces):
            alone, n = trace.carried(layer), len(trace)
            assert gap(made.moved[at, :, :n], alone.moved) <= 1e-10
            assert gap(made.rest[at, :n], alone.rest) <= 1e-6  # a norm after attention takes a float32 step


def test_where_every_token_counts_nothing_is_masked() -> None:
    traces = model("llama").trace([text(0, 9), text(1, 9)])
    assert traces.counted(keep_massive=True) is None
    assert traces.unpadded
    assert Traces.of(traces[0]).counted(keep_massive=True) is None
    assert batch().counted(keep_massive=True) is not None
    with pytest.raises(rs.RheoscopeError, match="at least 2 tokens that are not massive, got 1"):
        batch().counted(keep_massive=True, least=2)
    traces.points[1, 0, 0, 0] = torch.inf
    with pytest.raises(rs.RheoscopeError, match="NaN or infinity"):
        replace(traces).counted()


def test_a_trace_of_other_weights_is_refused() -> None:
    trace = model("llama").trace(text())
    check_made_by(model("llama"), trace)
    with pytest.raises(
        rs.RheoscopeError, match=r"made by other weights \(.*\) than the model's \(.*\); type model.trace"
    ):
        check_made_by(model("gpt2"), trace)
    with pytest.raises(rs.RheoscopeError, match=r"one Trace is asked about, got Traces; type model.trace\(text\)"):
        check_made_by(model("llama"), batch())
