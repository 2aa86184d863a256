"""A parallel map with one thread per CPU core, for work that a single core does alone, such as a small SVD."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")
RESULTS_PER_THREAD = 2
"""Results that each thread computes ahead of the caller. All results of a large model would not fit into memory."""


def map_on_cores(
    function: Callable[[Item], Result], items: Sequence[Item], limit: int | None = None
) -> Iterator[Result]:
    """The results of `function` for all items, in order, each as soon as it is ready.

    It uses as many threads as torch, each with one core, and at most `limit` of them. A limit changes no bit of a result,
    because the number of cores of an operation stays one. If torch may use one thread only, there is no pool. Threads wait
    when `RESULTS_PER_THREAD` results of each are not read yet.

    >>> list(map_on_cores(lambda x: x + 1, [1, 2, 3]))
    [2, 3, 4]
    """
    n_workers = min(torch.get_num_threads(), len(items))
    if n_workers < 2:
        yield from map(function, items)
        return
    n_workers = min(n_workers, limit or n_workers)
    n_threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(n_workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from _map_ahead(pool, function, items, RESULTS_PER_THREAD * n_workers)
    finally:
        torch.set_num_threads(n_threads)  # set_num_threads in a worker also sets the default of later threads


def _map_ahead(
    pool: ThreadPoolExecutor, function: Callable[[Item], Result], items: Sequence[Item], max_ahead: int
) -> Iterator[Result]:
    """The results in order, of which at most `max_ahead` exist before they are read."""
    unread: deque[Future[Result]] = deque()
    try:
        for item in items:
            if len(unread) == max_ahead:
                yield unread.popleft().result()
            unread.append(pool.submit(function, item))
        while unread:
            yield unread.popleft().result()
    finally:
        for future in unread:
            future.cancel()
