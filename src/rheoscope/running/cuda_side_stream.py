"""Work on a second CUDA stream while a model runs: copies use memory bandwidth, matrix products use the cores."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

TensorCallback = Callable[[Tensor], None]


@contextmanager
def on_side_stream(device: torch.device) -> Iterator[Callable[[TensorCallback], TensorCallback]]:
    """A function that wraps callbacks so that they run on a side stream, in the order of their calls.

    No such tensor may be changed in place afterwards. The device finishes all of it before any later work.
    """
    if device.type != "cuda":
        yield lambda callback: callback
        return
    side_stream = torch.cuda.Stream(device)
    try:
        yield lambda callback: partial(_run_on_stream, side_stream, callback)
    finally:
        torch.cuda.current_stream(device).wait_stream(side_stream)


def _run_on_stream(stream: torch.cuda.Stream, callback: TensorCallback, x: Tensor) -> None:
    if x.device != stream.device:  # of a block on another device, whose copy waits for its own stream
        torch.cuda.current_stream(stream.device).wait_stream(stream)
        callback(x)
        return
    stream.wait_stream(torch.cuda.current_stream(x.device))
    with torch.cuda.stream(stream):
        callback(x)
    x.record_stream(stream)  # keeps its memory until the callback ends
