"""What Python waits for is seen."""

from collections.abc import Callable

import pytest
import torch

from tests.waiting import Waited

WAITS: list[Callable[[torch.Tensor], object]] = [
    lambda x: x.sum().item(),
    lambda x: bool(x.any()),
    lambda x: x.nonzero(),
    lambda x: x.masked_select(x > 0),
    lambda x: x[x > 0],
    lambda x: torch.equal(x, x + 1),
    lambda x: x.unique(),
]


@pytest.mark.parametrize("at", range(len(WAITS)))
def test_what_python_waits_for_is_seen(at: int) -> None:
    with Waited() as waited:
        WAITS[at](torch.ones(3))
    assert len(waited.kept) == 1


def test_what_nobody_waits_for_is_not() -> None:
    with Waited() as waited:
        torch.where(torch.ones(3) > 0, 1, 2).sum() + 1
    assert waited.kept == []
