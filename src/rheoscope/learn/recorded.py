"""A step that is recorded once and played again: small kernels of a small model take a GPU less time than Python takes to name them.

the first steps     as they are, on a stream of their own: kernels are compiled, optimisers begin to remember
the next one        recorded, not run (a CUDA graph)
all others          inputs are copied to where the recording reads them, and it is played
"""

from collections.abc import Callable

import torch
from torch import Tensor

WARM = 3
"""Steps that are taken before one is recorded."""


class Recorder:
    """Runs a function of tensors; where it is `on`, the calls after the first few are played from a recording.

    **Laws** it gives what the function gives; other shapes are run as they are, until they have come a few times in turn.

    **Takes** a function that is the same each time but for its inputs and the tensors it changes in place: what it reads from Python
    is read once. Tensors that it changes must stay where they are; where they move, `forget`.

    >>> Recorder()(lambda x: x + 1, torch.zeros(2))
    tensor([1., 1.])
    """

    def __init__(self) -> None:
        self.on = False
        self.forget()

    def forget(self) -> None:
        """Start anew: the recording goes, with the memory it held."""
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: list[Tensor] = []
        self.output: Tensor | None = None
        self.shapes: list[torch.Size] = []
        self.seen = 0

    def __call__(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        if not self.on:
            return function(*inputs)
        shapes = [x.shape for x in inputs]
        if shapes != self.shapes:
            self.forget()
            self.shapes = shapes
        if self.graph is None and self.seen < WARM:
            self.seen += 1
            return _beside(function, *inputs)
        if self.graph is None:
            self._record(function, *inputs)
        assert self.graph is not None
        assert self.output is not None
        for mine, given in zip(self.inputs, inputs, strict=True):
            mine.copy_(given)
        self.graph.replay()
        return self.output.clone()

    def _record(self, function: Callable[..., Tensor], *inputs: Tensor) -> None:
        self.inputs, self.graph = [x.clone() for x in inputs], torch.cuda.CUDAGraph()
        # thread_local: the thread that reads the next batch may go on
        with torch.cuda.graph(self.graph, stream=_stream(), capture_error_mode="thread_local"):
            self.output = function(*self.inputs)


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
