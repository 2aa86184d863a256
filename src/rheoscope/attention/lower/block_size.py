"""Block sizes by device: how many numbers to process at a time.

On a CPU a block should stay in the cache. On a GPU each block costs a kernel launch, so a block is as large as free
memory allows.
"""

import torch

CPU_BLOCK = 1 << 21
"""Numbers in a block that is read and written a few times (8 MiB in float32)."""
CACHE_BLOCK = 1 << 18
"""Numbers in a block that is updated in place many times (1 MiB in float32, the cache of one core)."""
CPU_LOGITS = 1 << 25
"""Logits of the texts in a batch (128 MiB in float32)."""
COMPILED_BLOCK = 1 << 26
"""Numbers in a block inside a compiled graph on a GPU (256 MiB in float32)."""
GPU_BUSY_BLOCK = 1 << 26
"""Numbers that keep a GPU busy for milliseconds, far longer than a launch (256 MiB in float32)."""
MEMORY_DIVISOR = 64
"""A block takes 1/64 of the free bytes of a GPU, because its backward pass stores several copies, up to float64."""
EMPTY_STATS = {"all": {"current": 0}}
"""The memory statistics of a GPU before its first use."""
N_LAYERS_KEPT = 16
"""Layers that may each store all their scores for the backward pass."""


def block_numel(device: torch.device) -> int:
    """The number of scores in a block on this device.

    >>> block_numel(torch.device("cpu"))
    2097152
    """
    return _numel_for_memory(device, CPU_BLOCK)


def unblocked_numel(device: torch.device) -> int:
    """The number of scores up to which a call runs without blocks. On a GPU every layer of a model stores its own.

    >>> unblocked_numel(torch.device("cpu"))
    2097152
    """
    return max(CPU_BLOCK, _numel_for_memory(device, CPU_BLOCK) // N_LAYERS_KEPT)


def cache_block_numel(device: torch.device) -> int:
    """The number of values in a block that is updated in place: a core's cache, or enough to keep a GPU busy.

    >>> cache_block_numel(torch.device("cpu"))
    262144
    """
    return min(_numel_for_memory(device, CACHE_BLOCK), GPU_BUSY_BLOCK)


def logits_numel(device: torch.device) -> int:
    """The number of logits in a batch of texts. On a CPU larger batches save no time.

    >>> logits_numel(torch.device("cpu"))
    33554432
    """
    return CPU_LOGITS if device.type == "cpu" else _numel_for_memory(device, CPU_LOGITS)


def _numel_for_memory(device: torch.device, cpu_numel: int) -> int:
    if device.type != "cuda":
        return cpu_numel
    if torch.compiler.is_compiling():  # a query of free memory would break the graph
        return COMPILED_BLOCK
    memory_stats = torch.cuda.memory_stats_as_nested_dict(
        device
    )  # one query, since each costs as much as many launches
    reserved_bytes, allocated_bytes = (
        memory_stats.get(f"{name}_bytes", EMPTY_STATS)["all"]["current"] for name in ("reserved", "allocated")
    )
    free_bytes = torch.cuda.mem_get_info(device)[0] + reserved_bytes - allocated_bytes
    return max(cpu_numel, free_bytes // MEMORY_DIVISOR // 4)
