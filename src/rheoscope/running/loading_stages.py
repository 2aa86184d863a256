"""How far a long job is, told as one count: each stage knows its own, and the whole is told in percent."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Is told how many are done, and of how many."""


def stage(progress: Progress | None, begin: int, end: int) -> Progress:
    """What one stage tells, as percent `begin` to `end` of the whole job; without a listener nothing is told.

    >>> hashing = stage(lambda done, total: print(done, "of", total), 50, 80)
    >>> hashing(1, 2)
    65 of 100
    """
    if progress is None:
        return lambda done, total: None
    return lambda done, total: progress(begin + (end - begin) * done // max(total, 1), 100)
