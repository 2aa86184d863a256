"""Choosing coordinates by slices equals looking them up, and a regular choice copies nothing."""

import pytest
import torch
from torch import Tensor

from rheoscope.pretrained.finder.coordinate_choice import coordinate_choice
from rheoscope.pretrained.finder.tape import record_tape

FUSED = torch.arange(4)[:, None] * 15 + torch.arange(5)
"""The queries of four heads, where each head has its queries, keys and values side by side."""
HALF_TURN = torch.tensor([4, 5, 6, 7, 0, 1, 2, 3])
ORDERS = {
    "all": torch.arange(60).view(4, 15),
    "later": 20 + torch.arange(20).view(4, 5),
    "fused": FUSED + 5,
    "one row": torch.arange(7, 12)[None],
    "a line": torch.arange(7, 12),
    "halves swapped": HALF_TURN,
    "halves swapped, the rest stays": torch.cat([HALF_TURN, torch.arange(8, 20)]),
    "neighbours swapped": torch.arange(20) ^ 1,
    "shared by pairs of heads": (torch.arange(4) // 2)[:, None] * 5 + torch.arange(5),
    "backwards": torch.arange(59, -1, -1).view(4, 15),
    "at random": torch.randperm(60, generator=torch.Generator().manual_seed(0)).view(4, 15),
    "repeated": torch.zeros(2, 3, dtype=torch.long),
    "one": torch.tensor([[11]]),
}
GAINS = {"none": None, "ones": 1.0, "uniform": 0.3, "each": 2.0}


def gain_of(name: str, index: Tensor) -> Tensor | None:
    value = GAINS[name]
    if value is None:
        return None
    return torch.rand(index.shape, dtype=torch.float64) if name == "each" else torch.full(index.shape, value).double()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", GAINS)
def test_a_choice_equals_a_lookup(order: str, name: str) -> None:
    index = ORDERS[order]
    x, gain = torch.randn(2, 3, 60, generator=torch.Generator().manual_seed(0)), gain_of(name, index)
    expected = x[..., index] if gain is None else x[..., index] * gain.float()
    assert torch.equal(coordinate_choice(index, gain)(x), expected)
    assert torch.equal(coordinate_choice(index, gain)(x[0, 0]), expected[0, 0])


@pytest.mark.parametrize("order", ["all", "later", "fused", "one row", "a line", "one"])
def test_a_regular_choice_is_a_view(order: str) -> None:
    x = torch.randn(3, 60)
    chosen = coordinate_choice(ORDERS[order])(x)
    assert chosen.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    x.zero_()
    assert not chosen.any()


@pytest.mark.parametrize("order", ["halves swapped", "halves swapped, the rest stays", "neighbours swapped", "fused"])
def test_the_common_orders_look_nothing_up(order: str) -> None:
    choose = coordinate_choice(ORDERS[order])
    with record_tape(torch.nn.Identity(), 3) as tape:
        choose(torch.randn(3, 60))
    assert tape.operations
    assert {x.name for x in tape.operations}.isdisjoint({"index", "index_select", "gather"})
