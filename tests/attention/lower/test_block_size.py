"""Block sizes by device."""

import pytest
import torch

from rheoscope.attention.lower import block_size
from rheoscope.attention.lower.block_size import block_numel, cache_block_numel, unblocked_numel


def test_cpu_block_sizes_are_constants() -> None:
    cpu = torch.device("cpu")
    assert (block_numel(cpu), unblocked_numel(cpu), cache_block_numel(cpu)) == (1 << 21, 1 << 21, 1 << 18)


def test_gpu_block_sizes_are_a_fraction_of_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    free_bytes = 64 << 30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free_bytes - (1 << 30), 80 << 30))
    memory_stats = {
        f"{name}_bytes": {"all": {"current": size << 30}} for name, size in (("reserved", 3), ("allocated", 2))
    }
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: memory_stats)
    gpu = torch.device("cuda", 0)
    assert block_numel(gpu) == free_bytes // block_size.MEMORY_DIVISOR // 4
    assert cache_block_numel(gpu) == block_size.GPU_BUSY_BLOCK < block_numel(gpu)
    assert unblocked_numel(gpu) == block_numel(gpu) // block_size.N_LAYERS_KEPT


def test_a_full_gpu_gets_the_cpu_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 80 << 30))
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: {})
    assert block_numel(torch.device("cuda")) == 1 << 21
