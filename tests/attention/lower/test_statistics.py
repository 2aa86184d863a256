"""Statistics of weights that are known; the battery compares them with the whole map for every mechanism."""

import math

import pytest
import torch

from rheoscope.attention.lower.blocks import Block
from rheoscope.attention.lower.statistics import weight_statistics
from rheoscope.attention.mask import Window
from tests.attention.cases import gap, inputs, zoo_mechanism

FLAT = torch.zeros(1, 1, 4, 3)


def test_flat_weights() -> None:
    got = weight_statistics(zoo_mechanism("scaled_dot"), FLAT, FLAT, mask="causal")
    assert got["entropy"].flatten().tolist() == pytest.approx([math.log(t) for t in (1, 2, 3, 4)], abs=1e-6)
    assert got["first"].flatten().tolist() == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    assert got["top"].flatten().tolist() == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    assert got["distance"].flatten().tolist() == pytest.approx([0, 0.5, 1, 1.5])
    assert got["received"].flatten().tolist() == pytest.approx([25 / 12, 13 / 12, 7 / 12, 1 / 4])


def test_rows_are_shares_but_mass_is_mass() -> None:
    """Sigmoid rows sum to anything: entropy and distance are of the share, `first` and `received` of the weight."""
    got = weight_statistics(zoo_mechanism("sigmoid"), FLAT, FLAT)
    assert got["entropy"].flatten().tolist() == pytest.approx([math.log(4)] * 4, abs=1e-6)
    assert got["first"].flatten().tolist() == pytest.approx([0.5] * 4)
    assert got["received"].flatten().tolist() == pytest.approx([2.0] * 4)


def test_rows_without_keys_are_zero() -> None:
    got = weight_statistics(
        zoo_mechanism("scaled_dot"), torch.zeros(1, 1, 4, 3), torch.zeros(1, 1, 2, 3), mask="causal"
    )
    for name in ("entropy", "first", "top", "distance"):
        assert got[name][0, 0, :2].tolist() == [0.0, 0.0]


def test_your_own_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of a block, joined along the rows, also when blocks see only part of the keys."""
    from rheoscope.attention.lower import block_size

    monkeypatch.setattr(block_size, "CPU_BLOCK", 2 * 4 * 7 * 2)

    def on_itself(block: Block) -> torch.Tensor:
        return (block.weights * (block.i[:, None] == block.j)).sum(-1)

    q, k, _ = inputs(7, 7)
    got = weight_statistics(zoo_mechanism("metric"), q, k, mask=Window(2), of={"itself": on_itself})
    assert gap(got["itself"], zoo_mechanism("metric").weights(q, k, mask=Window(2)).diagonal(dim1=-2, dim2=-1)) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_counted_in_float32(dtype: torch.dtype) -> None:
    q, k, _ = (x.to(dtype) for x in inputs(5, 7))
    got = weight_statistics(zoo_mechanism("scaled_dot"), q, k)
    exact = weight_statistics(zoo_mechanism("scaled_dot"), q.double(), k.double())
    assert {x.dtype for x in got.values()} == {torch.float32}
    assert max(gap(got[name], exact[name]) for name in exact) < 1e-5


def test_no_graph_is_kept() -> None:
    q, k, _ = inputs(5, 7)
    assert not weight_statistics(zoo_mechanism("metric"), q.requires_grad_(), k)["entropy"].requires_grad
