"""Blocks hold O(N): no tensor of m x n numbers is ever made, and none is kept in pieces."""

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

N, BLOCK = 600, 1 << 16


class Largest(TorchDispatchMode):
    """The size of the largest tensor that any operation gives back, forward and backward alike."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, torch.Tensor):
                self.numbers = max(self.numbers, x.untyped_storage().nbytes() // x.element_size())
        return out


@pytest.fixture(autouse=True)
def small_block(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(block_size, "CPU_BLOCK", BLOCK)
    with without_jaxtyping_checks():
        yield


def held(run: Callable[..., torch.Tensor], mechanism: Mechanism, n: int = N) -> tuple[int, int]:
    """Numbers in the largest tensor ever made, and in all that the forward pass keeps for the backward pass."""
    q, k, v = (x.float().requires_grad_() for x in inputs(n, n, d=4, e=2, b=1, h=2, g=1))
    kept: dict[int, int] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // x.element_size()
        return x

    with Largest() as seen, torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        out = run(to_dtype(mechanism, torch.float32), q, k, v)
    with seen:
        out.sum().backward()
    assert q.grad is not None
    return seen.numbers, sum(kept.values())


def stays_small(mechanism: Mechanism, n: int = N) -> None:
    """No tensor outgrows a block, and the features of all tokens (32 numbers each, a few times) are all that is kept."""
    largest, kept = held(blocks.run, mechanism, n)
    assert largest <= BLOCK < n * n / 2
    assert kept <= n * 2 * 32 * 8 < 2 * n * n


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
    """A mask says which keys a block walks, whatever the mechanism: all of them with one."""
    stays_small(zoo_mechanism(name, dim=4).with_mask(MASKS[mask]), n=400 if name == "additive" else N)


def test_nor_does_sinkhorn_hold_more() -> None:
    """Column passes have blocks too."""
    stays_small(replace(zoo_mechanism("sinkhorn"), normaliser=Sinkhorn(1)), n=400)


def test_nor_does_a_position() -> None:
    stays_small(replace(zoo_mechanism("sigmoid"), position=ALiBi(alibi_slopes(2))).with_mask("causal"))


def test_the_reference_would_be_seen() -> None:
    largest, kept = held(lambda *args: reference_attention(*args)[0], zoo_mechanism("sigmoid"))
    assert min(largest, kept) >= 2 * N * N


def test_statistics_hold_no_more() -> None:
    q, k, _ = inputs(N, N, d=4, b=1, h=2, g=1)
    with Largest() as seen:
        weight_statistics(zoo_mechanism("scaled_dot"), q, k, mask="causal")
    assert seen.numbers <= BLOCK


def spans(mask: Any, m: int, n: int, rows: int) -> list[tuple[slice, slice]]:
    block_size.CPU_BLOCK = rows * n
    q, k, _ = inputs(m, n, b=1, h=1, g=1)
    return list(blocks.block_spans(zoo_mechanism("sigmoid").with_mask(mask), q, k))


def test_spans_walk_every_row_once_and_only_keys_that_may_count() -> None:
    assert spans(None, 5, 7, 2) == [(slice(0, 2), slice(0, 7)), (slice(2, 4), slice(0, 7)), (slice(4, 5), slice(0, 7))]
    assert spans("causal", 5, 7, 2) == [
        (slice(0, 2), slice(0, 4)),
        (slice(2, 4), slice(0, 6)),
        (slice(4, 5), slice(0, 7)),
    ]
    assert spans(Causal() & Window(2), 4, 4, 2) == [(slice(0, 2), slice(0, 2)), (slice(2, 4), slice(1, 4))]
    assert spans("causal", 4, 2, 2) == [(slice(0, 2), slice(0, 0)), (slice(2, 4), slice(0, 2))]


def test_a_block_of_weights_knows_where_it_stands() -> None:
    q, k, _ = inputs(6, 8)
    mechanism = zoo_mechanism("softmax_sink").with_mask(Causal() & Window(3))
    block_size.CPU_BLOCK = 2 * 4 * 8 * 2
    expected = reference_attention(mechanism, q, k, k)[1]
    built = torch.zeros_like(expected)
    for block in blocks.iterate_blocks(mechanism, q, k):
        assert block.i.tolist() == list(range(8))[2:][block.rows]
        assert block.j.tolist() == list(range(8))[block.keys]
        built[..., block.rows, block.keys] = block.weights
    assert torch.allclose(built, expected)


def test_rows_fill_a_block_and_never_vanish() -> None:
    q, k, _ = inputs(4, 100, b=2, h=4, g=2)
    assert blocks.make_block_scorer(zoo_mechanism("sigmoid"), q, k).rows_per_block == BLOCK // (2 * 4 * 100)
    assert blocks.make_block_scorer(zoo_mechanism("additive"), q, k).rows_per_block == BLOCK // (2 * 4 * 100 * 32)
    block_size.CPU_BLOCK = 1
    assert blocks.make_block_scorer(zoo_mechanism("sigmoid"), q, k).rows_per_block == 1


def test_what_depends_on_more_than_its_row_is_refused() -> None:
    q, k, v = inputs(4, 4)
    assert blocks.try_lower(zoo_mechanism("shaped"), q, k, v) == "a row of Shaped depends on more than its scores"
    assert math.isfinite(float(blocks.run(zoo_mechanism("sinkhorn"), q, k, v).sum()))
