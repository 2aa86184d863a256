"""Computing the next item of an iterator while the previous one is used."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def prefetch(items: Iterator[Item]) -> Iterator[Item]:
    """The same items in the same order. One thread computes the next item ahead.

    >>> list(prefetch(iter([1, 2, 3])))
    [1, 2, 3]
    """
    end = object()
    with ThreadPoolExecutor(1) as executor:
        pending = executor.submit(next, items, end)
        while (item := pending.result()) is not end:
            pending = executor.submit(next, items, end)
            yield item  # type: ignore[misc]
