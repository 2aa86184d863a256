"""Threads that take turns on blocks: the order of the blocks, and threads that fail or are left behind."""

from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from itertools import pairwise
from threading import Event

import pytest

from rheoscope.running.block_turns import BlockTurns


def visit(loops: Iterable[Iterable[int]]) -> list[tuple[int, int]]:
    """The (thread, block) visits of threads that loop over blocks, all of which start before the first visit."""
    turns, visits, loops = BlockTurns(), list[tuple[int, int]](), list(loops)
    all_submitted = Event()

    def loop(thread: int) -> None:
        with turns.take_part():
            all_submitted.wait(timeout=20)
            for block in loops[thread]:
                turns.wait_for(block)
                visits.append((thread, block))

    with ThreadPoolExecutor(len(loops)) as pool:
        results = [pool.submit(loop, thread) for thread in range(len(loops))]
        while len(turns._requests) < len(loops) - 1:
            pass
        all_submitted.set()
        for result in results:
            result.result(timeout=20)
    return visits


def changes(visits: list[tuple[int, int]]) -> int:
    """How often the current block changes."""
    return sum(before != after for (_, before), (_, after) in pairwise(visits))


def test_loops_over_all_layers_read_each_block_once() -> None:
    visits = visit([range(5)] * 4)
    assert [block for _, block in visits] == [block for block in range(5) for _ in range(4)]


def test_a_second_loop_joins_the_next_pass() -> None:
    visits = visit([[*range(3), *range(3)], range(3), [*range(3), *range(3)]])
    assert changes(visits) == 5  # two passes over three blocks


def test_a_loop_back_waits_until_the_others_have_finished() -> None:
    visits = visit([[2, 1, 0], [0, 1, 2]])
    assert [visit for visit in visits if visit[0] == 0] == [(0, 2), (0, 1), (0, 0)]
    assert changes(visits) == 4


def fail() -> None:
    raise ValueError("broken")


def test_a_thread_that_fails_passes_its_turn_on() -> None:
    turns = BlockTurns()

    def take_part(action: Callable[[], None]) -> None:
        with turns.take_part():
            turns.wait_for(3)
            action()

    with ThreadPoolExecutor(2) as pool:
        results = [pool.submit(take_part, action) for action in (fail, list)]
        with pytest.raises(ValueError, match="broken"):
            results[0].result(timeout=20)
        assert results[1].result(timeout=20) is None


def test_threads_that_wait_end_when_the_group_is_closed() -> None:
    turns, is_inside, may_leave = BlockTurns(), Event(), Event()

    def hold() -> None:
        with turns.take_part():
            is_inside.set()
            may_leave.wait(timeout=20)

    def join() -> None:
        with turns.take_part():
            pass

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(hold)
        is_inside.wait(timeout=20)
        second = pool.submit(join)
        turns.close()
        with pytest.raises(CancelledError):
            second.result(timeout=20)
        may_leave.set()
        first.result(timeout=20)


def test_a_thread_outside_of_the_group_never_waits() -> None:
    turns = BlockTurns()
    turns.wait_for(3)
    assert turns.block == -1
