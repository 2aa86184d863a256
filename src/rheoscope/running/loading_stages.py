"""Progress of a job with several stages, reported as one percentage."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""A callback with the number of finished steps and their total."""


def progress_stage(progress: Progress | None, start_percent: int, end_percent: int) -> Progress:
    """A callback for one stage, which covers `start_percent` to `end_percent` of the job; without `progress` it does nothing.

    >>> hashing = progress_stage(lambda done, total: print(done, "of", total), 50, 80)
    >>> hashing(1, 2)
    65 of 100
    """
    if progress is None:
        return lambda done, total: None
    return lambda done, total: progress(start_percent + (end_percent - start_percent) * done // max(total, 1), 100)
