"""One place says how large a block is, by device."""

import pytest
import torch

from rheoscope.attention.lower import block_size
from rheoscope.attention.lower.block_size import block_numel, cache_block_numel, unblocked_numel


def test_a_cpu_keeps_blocks_near_its_cores() -> None:
    cpu = torch.device("cpu")
    assert (block_numel(cpu), unblocked_numel(cpu), cache_block_numel(cpu)) == (1 << 21, 1 << 21, 1 << 18)


def test_a_gpu_holds_a_share_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    free = 64 << 30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free - (1 << 30), 80 << 30))
    held = {f"{name}_bytes": {"all": {"current": size << 30}} for name, size in (("reserved", 3), ("allocated", 2))}
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: held)
    gpu = torch.device("cuda", 0)
    assert block_numel(gpu) == free // block_size.MEMORY_DIVISOR // 4
    assert cache_block_numel(gpu) == block_size.GPU_BUSY_BLOCK < block_numel(gpu)
    assert unblocked_numel(gpu) == block_numel(gpu) // block_size.N_LAYERS_KEPT


def test_a_full_gpu_still_gets_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 80 << 30))
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: {})
    assert block_numel(torch.device("cuda")) == 1 << 21
