"""One question of many things, a thread a core: the answers in their order, and torch's threads as they were."""

from collections.abc import Iterator
from threading import get_ident

import pytest
import torch

from rheoscope.space.cpu_cores import on_cores


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("cores", [1, 3])
def test_answers_come_in_order_and_threads_stay(cores: int) -> None:
    torch.set_num_threads(cores)
    found = list(on_cores(lambda at: (at, get_ident()), range(20)))
    assert [at for at, _ in found] == list(range(20))
    assert (get_ident() in {thread for _, thread in found}) == (cores == 1)
    assert torch.get_num_threads() == cores


def test_an_error_is_the_callers() -> None:
    torch.set_num_threads(2)
    with pytest.raises(ZeroDivisionError):
        list(on_cores(lambda at: 1 / at, [1, 0, 2]))
    assert torch.get_num_threads() == 2
