"""How many threads a command computes with: as many as there are idle cores."""

import os


def use_idle_cores() -> None:
    """Let torch use the cores that nobody else uses; what the user set (OMP_NUM_THREADS) stays.

    Threads that wait for a core hold up all others: on a busy machine two of them are many times slower than one.
    """
    import torch

    if "OMP_NUM_THREADS" not in os.environ and hasattr(os, "getloadavg"):
        torch.set_num_threads(idle_cores(torch.get_num_threads(), os.getloadavg()[0]))


def leave_a_core() -> None:
    """One thread fewer where there are several: something else computes at the same time."""
    import torch

    torch.set_num_threads(max(1, torch.get_num_threads() - 1))


def idle_cores(cores: int, load: float) -> int:
    """Cores less those that were busy in the last minute, at least one.

    >>> idle_cores(2, 0.2), idle_cores(2, 5.0), idle_cores(16, 3.6)
    (2, 1, 12)
    """
    return max(1, cores - round(load))
