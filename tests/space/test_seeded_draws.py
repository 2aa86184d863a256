"""Seeded draws of several threads do not mix, and the global generator keeps its state."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import torch

from rheoscope.space.seeded_draws import seeded_draws


def draw_twice(seed: int, pause: Event | None = None) -> torch.Tensor:
    """Two draws of one seed; between them another thread may try to seed."""
    with seeded_draws(seed):
        first = torch.rand(3)
        if pause is not None:
            pause.wait(0.2)
        return torch.cat([first, torch.rand(3)])


def test_a_second_thread_waits_until_the_first_has_drawn() -> None:
    expected = draw_twice(0)
    never_set = Event()
    with ThreadPoolExecutor(2) as executor:
        first, second = executor.submit(draw_twice, 0, never_set), executor.submit(draw_twice, 1)
        assert torch.equal(first.result(), expected)
        assert torch.equal(second.result(), draw_twice(1))


def test_the_state_of_the_global_generator_is_restored() -> None:
    for cpu_only in (False, True):
        state = torch.get_rng_state()
        with seeded_draws(3, cpu_only):
            torch.rand(5)
        assert torch.equal(torch.get_rng_state(), state)


def test_blocks_may_be_nested() -> None:
    with seeded_draws(0):
        expected = torch.rand(2)
    with seeded_draws(0):
        with seeded_draws(7):
            torch.rand(4)
        assert torch.equal(torch.rand(2), expected)
