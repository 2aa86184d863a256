"""Host synchronisations are recorded."""

from collections.abc import Callable

import pytest
import torch

from tests.elsewhere import AWAY, elsewhere
from tests.waiting import WaitRecorder, record_waits

WAITS: list[Callable[[torch.Tensor], object]] = [
    lambda x: x.sum().item(),
    lambda x: bool(x.any()),
    lambda x: x.nonzero(),
    lambda x: x.masked_select(x > 0),
    lambda x: x[x > 0],
    lambda x: torch.equal(x, x + 1),
    lambda x: x.unique(),
]


@pytest.mark.parametrize("operation", WAITS)
def test_synchronising_operations_are_recorded(operation: Callable[[torch.Tensor], object]) -> None:
    with WaitRecorder() as recorder:
        operation(torch.ones(3))
    assert len(recorder.operations) == 1


def test_asynchronous_operations_are_not_recorded() -> None:
    with WaitRecorder() as recorder:
        torch.where(torch.ones(3) > 0, 1, 2).sum() + 1
    assert recorder.operations == []


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


@pytest.mark.parametrize(("operation", "count"), COPIES)
def test_blocking_copies_are_recorded(operation: Callable[[torch.Tensor], object], count: int) -> None:
    with elsewhere(), record_waits() as waits:
        x = torch.ones(3, device=AWAY)
        operation(x)
    assert len(waits) == count, waits
