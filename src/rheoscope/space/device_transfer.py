"""Non-blocking copies between the CPU and a GPU."""

from collections.abc import Callable

import torch
from torch import Tensor


def to_device(x: Tensor, device: torch.device | None) -> Tensor:
    """The same tensor on the device. For a GPU the copy is queued, and Python continues at once.

    A plain `x.to(device)` waits for all work that is queued on the GPU, which is then idle. Pinned memory makes the copy
    non-blocking for large tensors too; torch keeps it until it was read.

    >>> to_device(torch.arange(3), torch.device("cpu")).tolist()
    [0, 1, 2]
    """
    if device is None or device.type != "cuda" or x.device.type != "cpu":
        return x.to(device)
    return x.pin_memory().to(device, non_blocking=True)


def start_cpu_copy(x: Tensor) -> Callable[[], Tensor]:
    """Start copying a tensor to the CPU; the returned function waits for the copy and returns it.

    A plain `x.cpu()` waits for all work that is queued on the GPU. This waits for the tensor only.

    >>> wait_for_copy = start_cpu_copy(torch.arange(3))
    >>> wait_for_copy().tolist()
    [0, 1, 2]
    """
    copy_event, cpu_tensor = None, x if x.is_cuda else x.cpu()
    if x.is_cuda:
        cpu_tensor = torch.empty_like(x, device="cpu", pin_memory=True).copy_(x, non_blocking=True)
        copy_event = torch.cuda.current_stream(x.device).record_event()

    def wait_for_copy() -> Tensor:
        if copy_event is not None:
            copy_event.synchronize()
        return cpu_tensor

    return wait_for_copy
