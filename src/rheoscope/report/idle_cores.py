"""The number of threads of a command: the idle cores that it may use."""

import os
import time
from pathlib import Path

LOADAVG_FILE = Path("/proc/loadavg")
QUOTA_FILES = (Path("/sys/fs/cgroup/cpu.max"), Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"))


def use_idle_cores() -> None:
    """Let torch use the idle cores, unless the user set OMP_NUM_THREADS.

    A thread that waits for a core delays all others. On a busy machine two threads are much slower than one.
    """
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        idle = idle_cores(os.cpu_count() or 1, busy_threads())
        torch.set_num_threads(min(os.cpu_count() or 1, core_quota(QUOTA_FILES), idle))


def share_cores(n_jobs: int) -> None:
    """Let torch use the idle cores divided by the number of jobs that compute at once, unless the user set OMP_NUM_THREADS.

    More threads than cores are much slower than one thread per job: every product then waits for its slowest thread.
    """
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        use_idle_cores()
        torch.set_num_threads(max(1, torch.get_num_threads() // n_jobs))


def busy_threads(n_samples: int = 3) -> float:
    """The number of other running threads, the minimum of several samples, or else the load of the last minute."""
    try:
        return min(running_threads(_read_after(LOADAVG_FILE, 0.01 * index)) for index in range(n_samples))
    except (OSError, ValueError, IndexError):
        return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _read_after(file: Path, wait: float) -> str:
    time.sleep(wait)
    return file.read_text()


def running_threads(loadavg: str) -> int:
    """The number of other running threads, from /proc/loadavg.

    >>> running_threads("0.30 1.02 1.54 3/95 20536")
    2
    """
    return max(0, int(loadavg.split()[3].split("/")[0]) - 1)


def core_quota(files: tuple[Path, ...]) -> int:
    """The number of cores that a container may use, from its cgroup. Without a limit it is a large number."""
    unlimited = 2**16
    for file in files:
        try:
            values = file.read_text().split()
            period = values[1] if len(values) > 1 else (file.parent / "cpu.cfs_period_us").read_text()
            n_cores = float(values[0]) / float(period)
        except (OSError, ValueError, IndexError):
            continue  # "max", or no such file: no limit
        if n_cores > 0:
            return max(1, round(n_cores))
    return unlimited


def idle_cores(cores: int, load: float) -> int:
    """The number of cores that are not busy, at least one.

    >>> idle_cores(2, 0.2), idle_cores(2, 5.0), idle_cores(16, 3.6)
    (2, 1, 12)
    """
    return max(1, cores - round(load))
