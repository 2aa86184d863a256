"""How much memory is free for the weights of a model: of a GPU, or of this machine within the limit of its container."""

from pathlib import Path

import torch

MEMINFO = Path("/proc/meminfo")
CONTAINER_LIMITS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
"""The files with the limit of a container and with what it uses, of both versions of Linux' control groups."""
UNUSED_SHARE = 0.1
"""The share of free memory that weights must leave for points and intermediate results."""


class StreamedModelWarning(UserWarning):
    """The weights of a model do not fit into memory, so they are read block by block."""


def available_bytes(device: torch.device) -> int | None:
    """The free bytes of a GPU or of this machine; None if the system does not report them.

    >>> (available_bytes(torch.device("cpu")) or 2**30) > 2**20
    True
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if not MEMINFO.is_file():
        return None
    kilobytes = [line.split()[1] for line in MEMINFO.read_text().splitlines() if line.startswith("MemAvailable:")]
    free = [int(kilobytes[0]) * 1024] if kilobytes else []
    return min([*free, *_free_in_container()], default=None)


def _free_in_container() -> list[int]:
    """The limit of the container minus what it uses, if there is a limit."""
    for limit_file, usage_file in CONTAINER_LIMITS:
        try:
            limit, usage = limit_file.read_text().strip(), usage_file.read_text().strip()
        except OSError:
            continue
        if limit.isdigit() and usage.isdigit():
            return [max(0, int(limit) - int(usage))]
    return []


def fits(n_bytes: int, device: torch.device) -> bool:
    """Whether weights of `n_bytes` leave a tenth of the free memory unused. True if the free memory is unknown."""
    free = available_bytes(device)
    return free is None or n_bytes <= (1 - UNUSED_SHARE) * free
