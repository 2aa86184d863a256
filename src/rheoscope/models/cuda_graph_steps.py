"""A step that is recorded once and played again: small kernels of a small model take a GPU less time than Python takes to name them.

the first steps     as they are, on a stream of their own: kernels are compiled, optimisers begin to remember
the next one        recorded, not run (a CUDA graph)
all others          inputs are copied to where the recording reads them, and it is played
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

WARMUP_CALLS = 2
"""Times that shapes are met before they are recorded."""
Shapes = tuple[torch.Size, ...]


@dataclass(frozen=True, eq=False)
class _Recording:
    """What is played, where it reads its inputs, and where its output lies."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    output: Tensor

    def replay(self, *inputs: Tensor) -> Tensor:
        for buffer, value in zip(self.inputs, inputs, strict=True):
            buffer.copy_(value)
        self.graph.replay()
        return self.output.clone()


class Recorder:
    """Runs a function of tensors; where it is `on`, shapes that were met a few times are played from a recording.

    **Laws** it gives what the function gives.

    A recording keeps memory of its own; where there is no room for it, nothing is recorded.

    **Takes** a function that is the same each time but for its inputs and the tensors it changes in place: what it reads from Python
    is read once. Tensors that it changes must stay where they are; where they move, `forget`.

    >>> Recorder()(lambda x: x + 1, torch.zeros(2))
    tensor([1., 1.])
    """

    def __init__(self, enabled: bool = False) -> None:
        self.enabled = enabled
        self.shape_counts: Counter[Shapes] = Counter()
        self.recordings: dict[Shapes, _Recording] = {}

    def reset(self) -> None:
        """Start anew: the recordings go, with the memory they held."""
        self.shape_counts.clear()
        self.recordings.clear()

    def __call__(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        if not self.enabled:
            return function(*inputs)
        with torch.cuda.device(inputs[0].device):  # which need not be the current one
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
        pool = next(
            (recording.graph.pool() for recording in self.recordings.values()), None
        )  # they are never played at once
        # thread_local: the thread that reads the next batch may go on
        with torch.cuda.graph(graph, pool=pool, stream=_recording_stream(), capture_error_mode="thread_local"):
            output = function(*buffers)
        return _Recording(graph, buffers, output)


def _has_memory() -> bool:
    """Whether twice what a step takes is free: once for the recording, once for what is computed between steps."""
    allocated = torch.cuda.memory_allocated()
    step_bytes = torch.cuda.max_memory_allocated() - allocated
    return 2 * step_bytes <= torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - allocated


_STREAMS: dict[int, torch.cuda.Stream] = {}


def _recording_stream() -> torch.cuda.Stream:
    """The stream of this device on which is recorded: gradients are gathered on the one where a parameter was first used."""
    device_index = torch.cuda.current_device()
    return _STREAMS.setdefault(device_index, torch.cuda.Stream())


def _on_recording_stream(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Run on that stream, in its turn."""
    current, side = torch.cuda.current_stream(), _recording_stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        output = function(*inputs)
    current.wait_stream(side)
    return output


@torch.no_grad()
def reset_accumulate_grad(parameters: Iterable[Tensor]) -> None:
    """Parameters forget on which stream their gradients are gathered: the next step says.

    torch keeps that in a node of the graph (AccumulateGrad) as long as any tensor made of the parameter lives. The factors of a View
    are such tensors, made on the default stream, which no recording may wait for. A parameter drops its node where its
    dtype changes, so it does, there and back; its numbers stay where they are.
    """
    for parameter in parameters:
        data = parameter.data
        parameter.data = data.new_empty(0, dtype=torch.float64 if data.dtype != torch.float64 else torch.float32)
        parameter.data = data
