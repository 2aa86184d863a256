"""CUDA graphs of training steps: a step is recorded once and replayed, which removes Python's launch overhead.

first calls    run normally on a side stream, so that kernels are compiled and optimisers allocate their state
next call      recorded, not run (a CUDA graph)
later calls    inputs are copied to the buffers that the graph reads, and the graph is replayed
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

WARMUP_CALLS = 2
"""Calls with the same shapes before they are recorded."""
Shapes = tuple[torch.Size, ...]


@dataclass(frozen=True, eq=False)
class _Recording:
    """A graph, the buffers that it reads, and its output."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    output: Tensor

    def replay(self, *inputs: Tensor) -> Tensor:
        for buffer, value in zip(self.inputs, inputs, strict=True):
            buffer.copy_(value)
        self.graph.replay()
        return self.output.clone()


class Recorder:
    """Call a function of tensors. If enabled, repeated shapes are replayed from a CUDA graph.

    **Laws** The result equals that of the function.

    **Settings** The function may depend only on its inputs and on tensors that it changes in place. What it reads from Python is
    read once. The tensors that it changes must keep their addresses, otherwise call `reset`. A recording has memory of its own.
    If there is not enough memory, nothing is recorded.

    >>> Recorder()(lambda x: x + 1, torch.zeros(2))
    tensor([1., 1.])
    """

    def __init__(self, enabled: bool = False) -> None:
        self.enabled = enabled
        self.shape_counts: Counter[Shapes] = Counter()
        self.recordings: dict[Shapes, _Recording] = {}

    def reset(self) -> None:
        """Drop all recordings and free their memory."""
        self.shape_counts.clear()
        self.recordings.clear()

    def __call__(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        if not self.enabled:
            return function(*inputs)
        with torch.cuda.device(inputs[0].device):  # it may differ from the current device
            return self._run(function, *inputs)

    def _run(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        shapes = tuple(x.shape for x in inputs)
        self.shape_counts[shapes] += 1
        if self.shape_counts[shapes] <= WARMUP_CALLS or not (self.recordings or _has_memory()):
            return _on_recording_stream(function, *inputs)
        if shapes not in self.recordings:
            self.recordings[shapes] = self._record(function, *inputs)
        return self.recordings[shapes].replay(*inputs)

    def _record(self, function: Callable[..., Tensor], *inputs: Tensor) -> _Recording:
        buffers, graph = tuple(x.clone() for x in inputs), torch.cuda.CUDAGraph()
        # graphs never replay concurrently, so they share a pool
        pool = next((recording.graph.pool() for recording in self.recordings.values()), None)
        # thread_local: the thread that loads the next batch may continue
        with torch.cuda.graph(graph, pool=pool, stream=_recording_stream(), capture_error_mode="thread_local"):
            output = function(*buffers)
        return _Recording(graph, buffers, output)


def _has_memory() -> bool:
    """Whether twice the memory of a step is free: once for the recording, once for work between steps."""
    allocated = torch.cuda.memory_allocated()
    step_bytes = torch.cuda.max_memory_allocated() - allocated
    return 2 * step_bytes <= torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - allocated


_STREAMS: dict[int, torch.cuda.Stream] = {}


def _recording_stream() -> torch.cuda.Stream:
    """The recording stream of this device. Gradients accumulate on the stream where a parameter was first used."""
    device_index = torch.cuda.current_device()
    return _STREAMS.setdefault(device_index, torch.cuda.Stream())


def _on_recording_stream(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Run a function on the recording stream, ordered with the current stream."""
    current, side = torch.cuda.current_stream(), _recording_stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        output = function(*inputs)
    current.wait_stream(side)
    return output


@torch.no_grad()
def reset_accumulate_grad(parameters: Iterable[Tensor]) -> None:
    """Let parameters forget the stream on which their gradients accumulate. The next step sets it again.

    torch stores the stream in an AccumulateGrad node, which lives as long as any tensor computed from the parameter. The factors
    of a View are such tensors. They are computed on the default stream, for which no recording may wait. A parameter drops the
    node when its dtype changes, so the dtype is changed and restored. The numbers stay in place.
    """
    for parameter in parameters:
        data = parameter.data
        parameter.data = data.new_empty(0, dtype=torch.float64 if data.dtype != torch.float64 else torch.float32)
        parameter.data = data
