"""How many numbers to hold at a time, by device: the one place that block sizes come from.

On a CPU a block stays near the cores; on a GPU each block is a launch, so a block is as large as free memory allows.
"""

import torch

CPU_BLOCK = 1 << 21
"""Numbers of a block that is read and written a few times (8 MiB in float32): near the cores, and large enough to pay."""
CACHE_BLOCK = 1 << 18
"""Numbers of a block that is worked on in place, again and again (1 MiB in float32): within the cache of one core."""
CPU_LOGITS = 1 << 25
"""Logits of texts that run side by side (128 MiB in float32)."""
COMPILED_BLOCK = 1 << 26
"""Numbers of a block inside a compiled graph on a GPU (256 MiB in float32)."""
GPU_BUSY_BLOCK = 1 << 26
"""Numbers with which a GPU is busy for milliseconds, a launch takes microseconds (256 MiB in float32)."""
MEMORY_DIVISOR = 64
"""One part in so many of the free bytes of a GPU: the backward pass of a block holds several copies in float64 or less."""
EMPTY_STATS = {"all": {"current": 0}}
"""What torch has reserved of a GPU before it is first used."""
N_LAYERS_KEPT = 16
"""Layers that may each keep all their scores for the backward pass."""


def block_numel(device: torch.device) -> int:
    """How many scores a block may hold on this device.

    >>> block_numel(torch.device("cpu"))
    2097152
    """
    return _numel_for_memory(device, CPU_BLOCK)


def unblocked_numel(device: torch.device) -> int:
    """How many scores are better held all together: fewer than a block on a GPU, since every layer of a model keeps its own.

    >>> unblocked_numel(torch.device("cpu"))
    2097152
    """
    return max(CPU_BLOCK, _numel_for_memory(device, CPU_BLOCK) // N_LAYERS_KEPT)


def cache_block_numel(device: torch.device) -> int:
    """The same for work that stays in the cache of a CPU, of which several copies are held; a GPU is busy long before it is full.

    >>> cache_block_numel(torch.device("cpu"))
    262144
    """
    return min(_numel_for_memory(device, CACHE_BLOCK), GPU_BUSY_BLOCK)


def logits_numel(device: torch.device) -> int:
    """How many logits of texts side by side to hold; on a CPU longer batches save nothing.

    >>> logits_numel(torch.device("cpu"))
    33554432
    """
    return CPU_LOGITS if device.type == "cpu" else _numel_for_memory(device, CPU_LOGITS)


def _numel_for_memory(device: torch.device, cpu_numel: int) -> int:
    if device.type != "cuda":
        return cpu_numel
    if torch.compiler.is_compiling():  # asking for memory would break a graph
        return COMPILED_BLOCK
    memory_stats = torch.cuda.memory_stats_as_nested_dict(
        device
    )  # in one question: each takes as long as many launches
    reserved_bytes, allocated_bytes = (
        memory_stats.get(f"{name}_bytes", EMPTY_STATS)["all"]["current"] for name in ("reserved", "allocated")
    )
    free_bytes = torch.cuda.mem_get_info(device)[0] + reserved_bytes - allocated_bytes
    return max(cpu_numel, free_bytes // MEMORY_DIVISOR // 4)
