"""Attention in blocks takes O(N) memory: no tensor has m x n numbers, and the saved tensors do not add up to that."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rheoscope.attention.definition import reference_attention
from rheoscope.attention.lower import block_size, blocks
from rheoscope.attention.lower.statistics import weight_statistics
from rheoscope.attention.mask import Causal, Window
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.normaliser.sinkhorn import Sinkhorn
from rheoscope.attention.position_bias import ALiBi, alibi_slopes
from tests.attention.cases import inputs, to_dtype, without_jaxtyping_checks, zoo_mechanism

N, BLOCK = 257, 33_000


class LargestTensor(TorchDispatchMode):
    """Record the size of the largest tensor that any operation returns, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, torch.Tensor):
                self.numel = max(self.numel, x.untyped_storage().nbytes() // x.element_size())
        return out


@pytest.fixture(autouse=True)
def small_block(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(block_size, "CPU_BLOCK", BLOCK)
    with without_jaxtyping_checks():
        yield


def peak_and_saved_numel(run: Callable[..., torch.Tensor], mechanism: Mechanism) -> tuple[int, int]:
    """The size of the largest tensor, and of all tensors that the forward pass saves for the backward pass."""
    q, k, v = (x.float().requires_grad_() for x in inputs(N, N, d=4, e=2, b=1, h=2, g=1))
    saved: dict[int, int] = {}

    def record(x: torch.Tensor) -> torch.Tensor:
        saved[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // x.element_size()
        return x

    with LargestTensor() as largest, torch.autograd.graph.saved_tensors_hooks(record, lambda x: x):
        out = run(to_dtype(mechanism, torch.float32), q, k, v)
    with largest:
        out.sum().backward()
    assert q.grad is not None
    return largest.numel, sum(saved.values())


def assert_linear_memory(mechanism: Mechanism) -> None:
    """No tensor is larger than a block, and only features of tokens (32 numbers each, a few times) are saved."""
    peak, saved = peak_and_saved_numel(blocks.run, mechanism)
    assert peak <= BLOCK < N * N / 2
    assert saved <= N * 2 * 32 * 8 < 2 * N * N


ROWWISE = [
    "sigmoid",
    "relu",
    "kernel_laplace",
    "kernel_polynomial",
    "additive",
    "relation",
    "sparsemax",
    "metric",
    "entmax15",
]


MASKS = {"none": None, "causal": "causal", "sliding": Causal() & Window(64)}


@pytest.mark.parametrize(
    ("name", "mask"), [*((name, "causal") for name in ROWWISE), *(("sigmoid", mask) for mask in ("none", "sliding"))]
)
def test_memory_is_linear(name: str, mask: str) -> None:
    """Every mechanism with the causal mask, and one mechanism with the other masks."""
    assert_linear_memory(zoo_mechanism(name, dim=4).with_mask(MASKS[mask]))


def test_memory_of_sinkhorn_is_linear() -> None:
    """Column passes also run in blocks."""
    assert_linear_memory(replace(zoo_mechanism("sinkhorn"), normaliser=Sinkhorn(1)))


def test_memory_with_a_position_bias_is_linear() -> None:
    assert_linear_memory(replace(zoo_mechanism("sigmoid"), position=ALiBi(alibi_slopes(2))).with_mask("causal"))


def test_memory_of_the_reference_is_quadratic() -> None:
    peak, saved = peak_and_saved_numel(lambda *args: reference_attention(*args)[0], zoo_mechanism("sigmoid"))
    assert min(peak, saved) >= 2 * N * N


def test_memory_of_statistics_is_linear() -> None:
    q, k, _ = inputs(N, N, d=4, b=1, h=2, g=1)
    with LargestTensor() as largest:
        weight_statistics(zoo_mechanism("scaled_dot"), q, k, mask="causal")
    assert largest.numel <= BLOCK


def spans(mask: Any, m: int, n: int, rows: int) -> list[tuple[slice, slice]]:
    block_size.CPU_BLOCK = rows * n
    q, k, _ = inputs(m, n, b=1, h=1, g=1)
    return list(blocks.block_spans(zoo_mechanism("sigmoid").with_mask(mask), q, k))


def test_spans_cover_every_row_once_with_the_keys_that_the_mask_allows() -> None:
    assert spans(None, 5, 7, 2) == [(slice(0, 2), slice(0, 7)), (slice(2, 4), slice(0, 7)), (slice(4, 5), slice(0, 7))]
    assert spans("causal", 5, 7, 2) == [
        (slice(0, 2), slice(0, 4)),
        (slice(2, 4), slice(0, 6)),
        (slice(4, 5), slice(0, 7)),
    ]
    assert spans(Causal() & Window(2), 4, 4, 2) == [(slice(0, 2), slice(0, 2)), (slice(2, 4), slice(1, 4))]
    assert spans("causal", 4, 2, 2) == [(slice(0, 2), slice(0, 0)), (slice(2, 4), slice(0, 2))]


def test_blocks_of_weights_carry_their_positions() -> None:
    q, k, _ = inputs(6, 8)
    mechanism = zoo_mechanism("softmax_sink").with_mask(Causal() & Window(3))
    block_size.CPU_BLOCK = 2 * 4 * 8 * 2
    expected = reference_attention(mechanism, q, k, k)[1]
    assembled = torch.zeros_like(expected)
    for block in blocks.iterate_blocks(mechanism, q, k):
        assert block.i.tolist() == list(range(8))[2:][block.rows]
        assert block.j.tolist() == list(range(8))[block.keys]
        assembled[..., block.rows, block.keys] = block.weights
    assert torch.allclose(assembled, expected)


def test_a_block_has_at_least_one_row() -> None:
    q, k, _ = inputs(4, 100, b=2, h=4, g=2)
    assert blocks.make_block_scorer(zoo_mechanism("sigmoid"), q, k).rows_per_block == BLOCK // (2 * 4 * 100)
    assert blocks.make_block_scorer(zoo_mechanism("additive"), q, k).rows_per_block == BLOCK // (2 * 4 * 100 * 32)
    block_size.CPU_BLOCK = 1
    assert blocks.make_block_scorer(zoo_mechanism("sigmoid"), q, k).rows_per_block == 1


def test_a_normaliser_that_is_not_rowwise_is_refused() -> None:
    q, k, v = inputs(4, 4)
    assert blocks.try_lower(zoo_mechanism("shaped"), q, k, v) == "a row of Shaped depends on more than its own scores"
    assert math.isfinite(float(blocks.run(zoo_mechanism("sinkhorn"), q, k, v).sum()))
