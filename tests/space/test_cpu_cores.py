"""The parallel map keeps the order of results and torch's number of threads."""

from collections.abc import Iterator
from threading import get_ident

import pytest
import torch

from rheoscope.space.cpu_cores import RESULTS_PER_THREAD, map_on_cores


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("cores", [1, 3])
def test_results_are_in_order_and_thread_count_is_restored(cores: int) -> None:
    torch.set_num_threads(cores)
    results = list(map_on_cores(lambda item: (item, get_ident()), range(20)))
    assert [item for item, _ in results] == list(range(20))
    assert (get_ident() in {thread for _, thread in results}) == (cores == 1)
    assert torch.get_num_threads() == cores


def test_threads_wait_for_the_caller() -> None:
    """Results that are not read yet take memory, so there are few of them."""
    torch.set_num_threads(2)
    started: list[int] = []

    def compute(item: int) -> int:
        started.append(item)
        return item

    for n_read, result in enumerate(map_on_cores(compute, range(40))):
        assert result == n_read
        assert len(started) <= n_read + 2 * RESULTS_PER_THREAD
    assert sorted(started) == list(range(40))


def test_error_reaches_the_caller() -> None:
    torch.set_num_threads(2)
    with pytest.raises(ZeroDivisionError):
        list(map_on_cores(lambda item: 1 / item, [1, 0, 2]))
    assert torch.get_num_threads() == 2
