"""Buffers through which threads read tensors that change their dtype or their device on the way.

On a GPU the buffers are page-locked and each thread has two: one is copied to the device while the other is filled. All copies to
one device run on one stream, so that the memory of tensors that are dropped serves the next ones.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

CHUNK_BYTES = 2**23
"""Tensors for a GPU are read in chunks of this many bytes."""
CONVERTED_BYTES = 2**20
"""Tensors for another dtype are read in smaller chunks, because every thread keeps a buffer."""
_streams: dict[torch.device, Any] = {}
_streams_lock = threading.Lock()


def buffer_bytes(device: torch.device) -> int:
    """The size of a buffer for tensors of a device.

    >>> buffer_bytes(torch.device("cpu")) == CONVERTED_BYTES
    True
    """
    return CHUNK_BYTES if device.type == "cuda" else CONVERTED_BYTES


def on_copy_stream(device: torch.device) -> AbstractContextManager[Any]:
    """Inside, operations on a GPU run on the stream for copies to it. Elsewhere nothing changes."""
    if device.type != "cuda":
        return nullcontext()
    with _streams_lock:
        if device not in _streams:
            _streams[device] = torch.cuda.Stream(device)
        return torch.cuda.stream(_streams[device])


class ReadBuffers(threading.local):
    """The buffers of the current thread. `copies` are the events after which each of two page-locked buffers is free again."""

    def __init__(self) -> None:
        self.buffer = torch.empty(0, dtype=torch.uint8)
        self.pinned: list[Tensor] = []
        self.copies: list[Any] = [None, None]

    @contextmanager
    def next(self, device: torch.device) -> Iterator[Tensor]:
        """A buffer that no copy uses any more. Copies from it inside run on the stream for copies."""
        if device.type != "cuda":
            if not len(self.buffer):
                self.buffer = torch.empty(CONVERTED_BYTES, dtype=torch.uint8)
            yield self.buffer
            return
        if not self.pinned:
            self.pinned = [torch.empty(CHUNK_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self.pinned.reverse()
        self.copies.reverse()
        if self.copies[0] is not None:
            self.copies[0].synchronize()
        with on_copy_stream(device):
            yield self.pinned[0]
            self.copies[0] = torch.cuda.current_stream(device).record_event()

    def finish(self) -> None:
        """Wait for the copies of this thread."""
        for copy in self.copies:
            if copy is not None:
                copy.synchronize()


BUFFERS = ReadBuffers()
