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

WARM = 2
"""Times that shapes are met before they are recorded."""
Shapes = tuple[torch.Size, ...]


@dataclass(frozen=True, eq=False)
class _Recording:
    """What is played, where it reads its inputs, and where its output lies."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    output: Tensor

    def played(self, *inputs: Tensor) -> Tensor:
        for mine, given in zip(self.inputs, inputs, strict=True):
            mine.copy_(given)
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

    def __init__(self, on: bool = False) -> None:
        self.on = on
        self.met: Counter[Shapes] = Counter()
        self.recordings: dict[Shapes, _Recording] = {}

    def forget(self) -> None:
        """Start anew: the recordings go, with the memory they held."""
        self.met.clear()
        self.recordings.clear()

    def __call__(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        if not self.on:
            return function(*inputs)
        with torch.cuda.device(inputs[0].device):  # which need not be the current one
            return self._asked(function, *inputs)

    def _asked(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        shapes = tuple(x.shape for x in inputs)
        self.met[shapes] += 1
        if self.met[shapes] <= WARM or not (self.recordings or _room()):
            return _beside(function, *inputs)
        if shapes not in self.recordings:
            self.recordings[shapes] = self._recorded(function, *inputs)
        return self.recordings[shapes].played(*inputs)

    def _recorded(self, function: Callable[..., Tensor], *inputs: Tensor) -> _Recording:
        mine, graph = tuple(x.clone() for x in inputs), torch.cuda.CUDAGraph()
        pool = next((one.graph.pool() for one in self.recordings.values()), None)  # they are never played at once
        # thread_local: the thread that reads the next batch may go on
        with torch.cuda.graph(graph, pool=pool, stream=_stream(), capture_error_mode="thread_local"):
            output = function(*mine)
        return _Recording(graph, mine, output)


def _room() -> bool:
    """Whether twice what a step takes is free: once for the recording, once for what is computed between steps."""
    held = torch.cuda.memory_allocated()
    step = torch.cuda.max_memory_allocated() - held
    return 2 * step <= torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - held


_STREAMS: dict[int, torch.cuda.Stream] = {}


def _stream() -> torch.cuda.Stream:
    """The stream of this device on which is recorded: gradients are gathered on the one where a parameter was first used."""
    at = torch.cuda.current_device()
    return _STREAMS.setdefault(at, torch.cuda.Stream())


def _beside(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Run on that stream, in its turn."""
    here, there = torch.cuda.current_stream(), _stream()
    there.wait_stream(here)
    with torch.cuda.stream(there):
        found = function(*inputs)
    here.wait_stream(there)
    return found


@torch.no_grad()
def forget_accumulate_grad(parameters: Iterable[Tensor]) -> None:
    """Parameters forget on which stream their gradients are gathered: the next step says.

    torch keeps that in a node of the graph (AccumulateGrad) as long as any tensor made of the parameter lives. The factors of a View
    are such tensors, made on the default stream, which no recording may wait for. A parameter drops its node where its
    dtype changes, so it does, there and back; its numbers stay where they are.
    """
    for parameter in parameters:
        own = parameter.data
        parameter.data = own.new_empty(0, dtype=torch.float64 if own.dtype != torch.float64 else torch.float32)
        parameter.data = own
