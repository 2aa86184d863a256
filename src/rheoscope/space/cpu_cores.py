"""The same question of many things, one thread a core: for what a core does alone, such as an assignment or a small SVD."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Found = TypeVar("Found")


def on_cores(ask: Callable[[Item], Found], items: Sequence[Item]) -> Iterator[Found]:
    """What `ask` gives for every item, in their order, as soon as it is there.

    As many threads as torch computes with, each with one core of its own, so that where the user allows one there is none besides.

    >>> list(on_cores(lambda x: x + 1, [1, 2, 3]))
    [2, 3, 4]
    """
    cores = min(torch.get_num_threads(), len(items))
    if cores < 2:
        yield from map(ask, items)
        return
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from pool.map(ask, items)
    finally:
        torch.set_num_threads(threads)  # the workers' call also set what later threads begin with
