"""Seeded draws from torch's global generator, one thread at a time, with its state restored afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch

_GLOBAL_GENERATOR = RLock()


@contextmanager
def seeded_draws(seed: int, cpu_only: bool = False) -> Iterator[None]:
    """Inside the block, code that uses torch's global generator draws from this seed.

    The generator belongs to the whole process. Reports build untrained controls in a second thread, so two threads could
    seed it at once, and one would draw the numbers of the other. A lock prevents that. With `cpu_only`, the generators
    of GPUs are left alone.

    **Laws** Equal seeds draw equal numbers in every thread. The state of the generator is unchanged afterwards.

    >>> with seeded_draws(0):
    ...     first = torch.rand(2)
    >>> with seeded_draws(0):
    ...     torch.equal(torch.rand(2), first)
    True
    """
    with _GLOBAL_GENERATOR, torch.random.fork_rng([] if cpu_only else None):
        if cpu_only:
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)
        yield
