"""Statistics of known weights. tests/laws compares them with the full map for every mechanism."""

import math

import pytest
import torch

from rheoscope.attention.lower.blocks import Block
from rheoscope.attention.lower.statistics import weight_statistics
from rheoscope.attention.mask import Window
from tests.attention.cases import gap, inputs, zoo_mechanism

FLAT = torch.zeros(1, 1, 4, 3)


def test_statistics_of_uniform_weights() -> None:
    statistics = weight_statistics(zoo_mechanism("scaled_dot"), FLAT, FLAT, mask="causal")
    assert statistics["entropy"].flatten().tolist() == pytest.approx([math.log(t) for t in (1, 2, 3, 4)], abs=1e-6)
    assert statistics["first"].flatten().tolist() == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    assert statistics["top"].flatten().tolist() == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    assert statistics["distance"].flatten().tolist() == pytest.approx([0, 0.5, 1, 1.5])
    assert statistics["received"].flatten().tolist() == pytest.approx([25 / 12, 13 / 12, 7 / 12, 1 / 4])


def test_entropy_normalises_rows_and_column_sums_do_not() -> None:
    """Rows of sigmoid weights do not sum to 1: entropy and distance normalise them, `first` and `received` do not."""
    statistics = weight_statistics(zoo_mechanism("sigmoid"), FLAT, FLAT)
    assert statistics["entropy"].flatten().tolist() == pytest.approx([math.log(4)] * 4, abs=1e-6)
    assert statistics["first"].flatten().tolist() == pytest.approx([0.5] * 4)
    assert statistics["received"].flatten().tolist() == pytest.approx([2.0] * 4)


def test_rows_without_keys_are_zero() -> None:
    statistics = weight_statistics(
        zoo_mechanism("scaled_dot"), torch.zeros(1, 1, 4, 3), torch.zeros(1, 1, 2, 3), mask="causal"
    )
    for name in ("entropy", "first", "top", "distance"):
        assert statistics[name][0, 0, :2].tolist() == [0.0, 0.0]


def test_of_adds_statistics_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of a block is concatenated along the rows, even if blocks see only part of the keys."""
    from rheoscope.attention.lower import block_size

    monkeypatch.setattr(block_size, "CPU_BLOCK", 2 * 4 * 7 * 2)

    def diagonal_weight(block: Block) -> torch.Tensor:
        return (block.weights * (block.i[:, None] == block.j)).sum(-1)

    q, k, _ = inputs(7, 7)
    statistics = weight_statistics(zoo_mechanism("metric"), q, k, mask=Window(2), of={"itself": diagonal_weight})
    assert (
        gap(statistics["itself"], zoo_mechanism("metric").weights(q, k, mask=Window(2)).diagonal(dim1=-2, dim2=-1))
        < 1e-12
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_inputs_give_float32_statistics(dtype: torch.dtype) -> None:
    q, k, _ = (x.to(dtype) for x in inputs(5, 7))
    statistics = weight_statistics(zoo_mechanism("scaled_dot"), q, k)
    exact = weight_statistics(zoo_mechanism("scaled_dot"), q.double(), k.double())
    assert {x.dtype for x in statistics.values()} == {torch.float32}
    assert max(gap(statistics[name], exact[name]) for name in exact) < 1e-5


def test_statistics_have_no_gradient() -> None:
    q, k, _ = inputs(5, 7)
    assert not weight_statistics(zoo_mechanism("metric"), q.requires_grad_(), k)["entropy"].requires_grad
