"""What does not fit a GPU's memory is told in one line: how much it wanted, how much is free, what to type."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rheoscope.shapes import RheoscopeError

WANTED = re.compile(r"Tried to allocate ([\d.]+ \w+)")
FREE = re.compile(r"of which ([\d.]+ \w+) is free")


@contextmanager
def fitting(what: str, advice: str) -> Iterator[None]:
    """Meanwhile a GPU that is full is one line, about `what`, with `advice`; what was computed before is not lost.

    >>> with fitting("a map", "a shorter text"):
    ...     raise torch.OutOfMemoryError("Tried to allocate 40.00 GiB. GPU 0 has 79.11 GiB of which 3.10 GiB is free.")
    Traceback (most recent call last):
    rheoscope.shapes.RheoscopeError: a map wants 40.00 GiB more of the GPU's memory, 3.10 GiB are free; type a shorter text
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RheoscopeError(f"{what} wants {_said(str(error))}; type {advice}") from error


def _said(message: str) -> str:
    wanted, free = WANTED.search(message), FREE.search(message)
    more = f"{wanted[1]} more of the GPU's memory" if wanted else "more than the GPU's memory"
    return f"{more}, {free[1]} are free" if free else more


def check_room(what: str, size: int, device: torch.device, advice: str) -> None:
    """Refuse what is larger than the free memory of a GPU, before any of it is there."""
    if device.type != "cuda":
        return
    free = torch.cuda.mem_get_info(device)[0]
    if size > free:
        raise RheoscopeError(
            f"{what} needs {size / 2**30:.1f} GiB, {device} has {free / 2**30:.1f} free; type {advice}"
        )
