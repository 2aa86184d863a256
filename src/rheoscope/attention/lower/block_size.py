"""How many numbers to hold at a time, by device: the one place that block sizes come from.

On a CPU a block stays near the cores; on a GPU each block is a launch, so a block is as large as free memory allows.
"""

import torch

NEAR = 1 << 21
"""Numbers of a block that is read and written a few times (8 MiB in float32): near the cores, and large enough to pay."""
IN_CACHE = 1 << 18
"""Numbers of a block that is worked on in place, again and again (1 MiB in float32): within the cache of one core."""
LOGITS = 1 << 25
"""Logits of texts that run side by side (128 MiB in float32)."""
COMPILED = 1 << 26
"""Numbers of a block inside a compiled graph on a GPU (256 MiB in float32)."""
BUSY = 1 << 26
"""Numbers with which a GPU is busy for milliseconds, a launch takes microseconds (256 MiB in float32)."""
SHARE = 64
"""One part in so many of the free bytes of a GPU: the backward pass of a block holds several copies in float64 or less."""
NOTHING = {"all": {"current": 0}}
"""What torch has reserved of a GPU before it is first used."""
LAYERS = 16
"""Layers that may each keep all their scores for the backward pass."""


def numbers_at_once(device: torch.device) -> int:
    """How many scores a block may hold on this device.

    >>> numbers_at_once(torch.device("cpu"))
    2097152
    """
    return _fitting(device, NEAR)


def numbers_in_one_piece(device: torch.device) -> int:
    """How many scores are better held all together: fewer than a block on a GPU, since every layer of a model keeps its own.

    >>> numbers_in_one_piece(torch.device("cpu"))
    2097152
    """
    return max(NEAR, _fitting(device, NEAR) // LAYERS)


def numbers_in_cache(device: torch.device) -> int:
    """The same for work that stays in the cache of a CPU, of which several copies are held; a GPU is busy long before it is full.

    >>> numbers_in_cache(torch.device("cpu"))
    262144
    """
    return min(_fitting(device, IN_CACHE), BUSY)


def logits_at_once(device: torch.device) -> int:
    """How many logits of texts side by side to hold; on a CPU longer batches save nothing.

    >>> logits_at_once(torch.device("cpu"))
    33554432
    """
    return LOGITS if device.type == "cpu" else _fitting(device, LOGITS)


def _fitting(device: torch.device, on_cpu: int) -> int:
    if device.type != "cuda":
        return on_cpu
    if torch.compiler.is_compiling():  # asking for memory would break a graph
        return COMPILED
    held = torch.cuda.memory_stats_as_nested_dict(device)  # in one question: each takes as long as many launches
    reserved, allocated = (held.get(f"{name}_bytes", NOTHING)["all"]["current"] for name in ("reserved", "allocated"))
    free = torch.cuda.mem_get_info(device)[0] + reserved - allocated
    return max(on_cpu, free // SHARE // 4)
