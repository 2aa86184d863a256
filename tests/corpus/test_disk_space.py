"""A corpus keeps a GPU busy: while a batch is asked nobody waits for the one before."""

import copy
from dataclasses import replace

import pytest
import torch

import rheoscope as rs
from rheoscope.corpus.batch_analyses import Request, order_for_gpu, run_request
from rheoscope.corpus.segments import Segment
from rheoscope.space.device_transfer import start_cpu_copy, to_device
from tests import cases
from tests.elsewhere import elsewhere
from tests.waiting import record_waits

STANDARD = [Request(name, {}) for name in ("trajectory", "readout", "head_statistics", "clusters")]
AGREEMENT = Request("agreement", {"draws": 0, "max_queries": 8, "min_keys": 4})


@pytest.mark.parametrize("lengths", [[12, 12, 12], [12, 9, 12]], ids=["as long", "padded"])
@pytest.mark.parametrize("name", ["gpt2", "own_biased"])
def test_nobody_waits_for_the_standard_set_and_agreement(name: str, lengths: list[int]) -> None:
    """But Hugging Face, which looks at the texts before it begins."""
    with elsewhere() as device, torch.no_grad():
        model = rs.load(copy.deepcopy(cases.network(name)).to(device))
        pieces = [Segment(at, at, 0, torch.arange(length) % 7) for at, length in enumerate(lengths)]
        for _ in range(2):  # the first one finds out what is the same of all batches
            with record_waits() as waited:
                traces = model.trace([piece.ids for piece in pieces])
                for question in [*STANDARD, AGREEMENT]:
                    assert run_request(model, question, traces, pieces).texts == [0, 1, 2]
    assert [one for one in waited if not one.startswith(("masking_utils.py", "modeling_utils.py"))] == []


def test_what_needs_no_answer_is_asked_first() -> None:
    """So that the device has something to do when it has said which tokens are massive, and whether all is a number."""
    first, *others = order_for_gpu(STANDARD)
    assert [first.name, *(one.name for one in others)] == ["readout", "head_statistics", "trajectory", "clusters"]
    with elsewhere() as device, torch.no_grad():
        traces = rs.load(copy.deepcopy(cases.network("own_biased")).to(device)).trace([torch.arange(9)] * 2)
        for question in STANDARD:
            fresh = replace(traces)
            fresh.prefetch()
            run_request(None, question, fresh, [Segment(at, at, 0, torch.arange(9)) for at in range(2)])  # type: ignore[arg-type]
            assert ("_min_counts" in vars(fresh)) == (question != first), question.name


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # torch says once that it does not see all
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_gpu_is_not_waited_for(dtype: torch.dtype) -> None:
    """By torch's own account; it goes through kernels that the pretended device does not have."""
    model = rs.load(copy.deepcopy(cases.network("own_biased", dtype)).cuda())
    pieces = [Segment(at, at, 0, torch.arange(12) % 7) for at in range(3)]
    with torch.no_grad():
        for debug in ("default", "error"):  # the first one compiles, and finds out what is the same of all batches
            torch.cuda.set_sync_debug_mode(debug)
            try:
                traces = model.trace([piece.ids for piece in pieces])
                traces.prefetch()
                found = [
                    run_request(model, question, traces, pieces) for question in order_for_gpu([*STANDARD, AGREEMENT])
                ]
            finally:
                torch.cuda.set_sync_debug_mode("default")
    assert all(one.texts == [0, 1, 2] for one in found)


@pytest.mark.gpu
def test_numbers_arrive_at_a_gpu_and_come_back() -> None:
    x = torch.arange(1 << 20)
    there = to_device(x, torch.device("cuda"))
    tell = start_cpu_copy((2 * there)[-3:])
    x.zero_()  # what was sent is its own
    assert tell().tolist() == [2 * one for one in range((1 << 20) - 3, 1 << 20)]
    assert int(there.sum()) == sum(range(1 << 20))
