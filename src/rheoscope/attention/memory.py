"""One-line errors for GPU memory: how much was requested, how much is free, and what to type."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

REQUESTED_MEMORY = re.compile(r"Tried to allocate ([\d.]+ \w+)")
FREE_MEMORY = re.compile(r"of which ([\d.]+ \w+) is free")


@contextmanager
def explain_out_of_memory(task: str, advice: Advice) -> Iterator[None]:
    """Convert torch's out-of-memory error to one line about `task`, with `advice`.

    >>> from rheoscope.messages.advice import use
    >>> with explain_out_of_memory("a map", use(device="cpu")):
    ...     raise torch.OutOfMemoryError("Tried to allocate 40.00 GiB. GPU 0 has 79.11 GiB of which 3.10 GiB is free.")
    Traceback (most recent call last):
    rheoscope.shapes.RheoscopeError: a map needs 40.00 GiB more GPU memory, 3.10 GiB are free; type device='cpu'
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RheoscopeError(_out_of_memory_message(task, str(error)), advice) from error


def _out_of_memory_message(task: str, torch_text: str) -> Message:
    requested, free = REQUESTED_MEMORY.search(torch_text), FREE_MEMORY.search(torch_text)
    if requested and free:
        return Message(
            "{task} needs {requested} more GPU memory, {free} are free", task=task, requested=requested[1], free=free[1]
        )
    if requested:
        return Message("{task} needs {requested} more GPU memory", task=task, requested=requested[1])
    if free:
        return Message("{task} needs more GPU memory, {free} are free", task=task, free=free[1])
    return Message("{task} needs more memory than the GPU has", task=task)


def check_free_memory(name: str, n_bytes: int, device: torch.device, advice: Advice) -> None:
    """Raise before allocating more than the free memory of a GPU."""
    if device.type != "cuda":
        return
    free_bytes = torch.cuda.mem_get_info(device)[0]
    if n_bytes > free_bytes:
        raise RheoscopeError(
            Message(
                "{name} needs {needed:.1f} GiB, {device} has {free:.1f} GiB free",
                name=name,
                needed=n_bytes / 2**30,
                device=str(device),
                free=free_bytes / 2**30,
            ),
            advice,
        )
