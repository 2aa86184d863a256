"""Numbers on their way to a device and back, for which nobody waits longer than they take."""

from collections.abc import Callable

import torch
from torch import Tensor


def to_device(x: Tensor, device: torch.device | None) -> Tensor:
    """The same tensor on the device; where that is a GPU it comes in its turn, and Python goes on at once.

    A plain `x.to(device)` waits until a GPU has done all that it was asked before, and what is asked next finds it with nothing to do.
    Memory that a GPU reads by itself (pinned) makes that true of large tensors too; torch keeps it until it was read.

    >>> to_device(torch.arange(3), torch.device("cpu")).tolist()
    [0, 1, 2]
    """
    if device is None or device.type != "cuda" or x.device.type != "cpu":
        return x.to(device)
    return x.pin_memory().to(device, non_blocking=True)


def to_cpu_later(x: Tensor) -> Callable[[], Tensor]:
    """The same tensor on the CPU, asked for now and told when it is called for.

    A plain `x.cpu()` waits until a GPU has done all that it was asked before. This waits for the tensor alone: what was asked after it
    goes on meanwhile.

    >>> tell = to_cpu_later(torch.arange(3))
    >>> tell().tolist()
    [0, 1, 2]
    """
    done, told = None, x if x.is_cuda else x.cpu()
    if x.is_cuda:
        told = torch.empty_like(x, device="cpu", pin_memory=True).copy_(x, non_blocking=True)
        done = torch.cuda.current_stream(x.device).record_event()

    def tell() -> Tensor:
        if done is not None:
            done.synchronize()
        return told

    return tell
