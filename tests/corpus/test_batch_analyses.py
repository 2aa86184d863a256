"""Batches keep a GPU busy: no analysis of a batch synchronises with the device."""

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


@pytest.mark.parametrize(
    ("name", "lengths"), [("gpt2", [12, 9, 12]), ("own_biased", [12, 9, 12]), ("own_biased", [12, 12, 12])]
)
def test_the_default_analyses_do_not_synchronise_with_the_device(name: str, lengths: list[int]) -> None:
    """Except in Hugging Face's own code, which inspects the texts first."""
    with elsewhere() as device, torch.no_grad():
        model = rs.load(copy.deepcopy(cases.network(name)).to(device))
        segments = [Segment(number, number, 0, torch.arange(length) % 7) for number, length in enumerate(lengths)]
        for _ in range(2):  # the first pass caches what all batches share
            with record_waits() as waits:
                traces = model.trace([segment.ids for segment in segments])
                for request in [*STANDARD, AGREEMENT]:
                    assert run_request(model, request, traces, segments).texts == [0, 1, 2]
    assert [wait for wait in waits if not wait.startswith(("masking_utils.py", "modeling_utils.py"))] == []


def test_requests_without_massive_tokens_run_first() -> None:
    """The device then has work while the host learns which tokens are massive and whether all values are finite."""
    first_request, *other_requests = order_for_gpu(STANDARD)
    assert [first_request.name, *(request.name for request in other_requests)] == [
        "readout",
        "head_statistics",
        "trajectory",
        "clusters",
    ]
    with elsewhere() as device, torch.no_grad():
        traces = rs.load(copy.deepcopy(cases.network("own_biased")).to(device)).trace([torch.arange(9)] * 2)
        for request in STANDARD:
            new_traces = replace(traces)
            new_traces.prefetch()
            run_request(None, request, new_traces, [Segment(number, number, 0, torch.arange(9)) for number in range(2)])  # type: ignore[arg-type]
            assert ("_min_counts" in vars(new_traces)) == (request != first_request), request.name


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # torch warns once that the mode is a prototype
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_analysis_synchronises_with_a_gpu(dtype: torch.dtype) -> None:
    """Checked by torch's own debug mode, with kernels that the simulated device does not have."""
    model = rs.load(copy.deepcopy(cases.network("own_biased", dtype)).cuda())
    segments = [Segment(number, number, 0, torch.arange(12) % 7) for number in range(3)]
    with torch.no_grad():
        for debug in ("default", "error"):  # the first pass compiles, and caches what all batches share
            torch.cuda.set_sync_debug_mode(debug)
            try:
                traces = model.trace([segment.ids for segment in segments])
                traces.prefetch()
                results = [
                    run_request(model, request, traces, segments) for request in order_for_gpu([*STANDARD, AGREEMENT])
                ]
            finally:
                torch.cuda.set_sync_debug_mode("default")
    assert all(result.texts == [0, 1, 2] for result in results)


@pytest.mark.gpu
def test_asynchronous_copies_to_and_from_a_gpu_are_correct() -> None:
    x = torch.arange(1 << 20)
    on_gpu = to_device(x, torch.device("cuda"))
    read_copy = start_cpu_copy((2 * on_gpu)[-3:])
    x.zero_()  # the copy must not share its memory
    assert read_copy().tolist() == [2 * number for number in range((1 << 20) - 3, 1 << 20)]
    assert int(on_gpu.sum()) == sum(range(1 << 20))
