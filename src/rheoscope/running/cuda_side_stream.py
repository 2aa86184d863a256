"""Work that a GPU does beside a model while it runs: copies want its memory, products of matrices its cores."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

See = Callable[[Tensor], None]


@contextmanager
def beside(device: torch.device) -> Iterator[Callable[[See], See]]:
    """Inside, gives a function that makes others: what they do with a tensor is done beside the model, in the order of their calls.

    Nothing may change such a tensor in place afterwards. All of it is done before anything that is asked of the device after this.
    """
    if device.type != "cuda":
        yield lambda see: see
        return
    stream = torch.cuda.Stream(device)
    try:
        yield lambda see: partial(_see, stream, see)
    finally:
        torch.cuda.current_stream(device).wait_stream(stream)


def _see(stream: torch.cuda.Stream, see: See, x: Tensor) -> None:
    stream.wait_stream(torch.cuda.current_stream(x.device))
    with torch.cuda.stream(stream):
        see(x)
    x.record_stream(stream)  # its memory is not given away before
