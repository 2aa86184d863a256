"""Tensors of the CPU on their way to a device, for which nobody waits."""

import torch
from torch import Tensor


def sent(x: Tensor, device: torch.device | None) -> Tensor:
    """The same tensor on the device; where that is a GPU it comes in its turn, and Python goes on at once.

    A plain `x.to(device)` waits until a GPU has done all that it was asked before, and what is asked next finds it with nothing to do.
    Memory that a GPU reads by itself (pinned) makes that true of large tensors too; torch keeps it until it was read.

    >>> sent(torch.arange(3), torch.device("cpu")).tolist()
    [0, 1, 2]
    """
    if device is None or device.type != "cuda" or x.device.type != "cpu":
        return x.to(device)
    return x.pin_memory().to(device, non_blocking=True)
