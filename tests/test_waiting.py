"""What Python waits for is seen."""

from collections.abc import Callable

import pytest
import torch

from tests.elsewhere import AWAY, elsewhere
from tests.waiting import Waited, waited_elsewhere

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


COPIES: list[tuple[Callable[[torch.Tensor], object], int]] = [
    (lambda x: torch.arange(3).to(AWAY), 1),
    (lambda x: torch.arange(3).to(AWAY, non_blocking=True), 0),
    (lambda x: torch.tensor([1, 2], device=AWAY), 1),
    (lambda x: x.cpu(), 1),
    (lambda x: x.tolist(), 1),
    (lambda x: x[torch.tensor([0, 1])], 1),
    (lambda x: x[x > 0], 1),
    (lambda x: x + torch.arange(3, device=AWAY), 0),
]


@pytest.mark.parametrize("at", range(len(COPIES)))
def test_copies_that_are_waited_for_are_seen(at: int) -> None:
    ask, count = COPIES[at]
    with elsewhere(), waited_elsewhere() as waited:
        x = torch.ones(3, device=AWAY)
        ask(x)
    assert len(waited) == count, waited
