"""One line where a CPU multiplies far more slowly in the dtype that was asked for: nothing else would say why all takes so long."""

import time
from functools import cache
from typing import TYPE_CHECKING

import torch

from rheoscope.report.console import console

if TYPE_CHECKING:
    from rheoscope.running.runner import RunnableModel

MATRIX_SIZE, REPEATS, SLOW_RATIO = 128, 3, 4.0
"""Rows of the matrices that are multiplied, how often, and how many times as long as in float32 is worth a line."""


def warn_if_slow(model: "RunnableModel") -> None:
    """Say once on stderr how many times as long a product takes, where it is many."""
    dtype = model.view.dtype
    if model.device.type == "cpu" and dtype in (torch.bfloat16, torch.float16):
        _warn_once(dtype)


@cache
def _warn_once(dtype: torch.dtype) -> None:
    slowdown = dtype_slowdown(dtype)
    if slowdown > SLOW_RATIO:
        name = str(dtype).removeprefix("torch.")
        console(stderr=True).print(
            f"on this CPU a matrix product in {name} takes {slowdown:.0f} times as long as in float32; type --dtype float32",
            soft_wrap=True,
        )


def dtype_slowdown(dtype: torch.dtype) -> float:
    """How many times as long a product takes as in float32, the best of a few of each."""
    best_time = {}
    for timed_dtype in (torch.float32, dtype):
        A = torch.ones(MATRIX_SIZE, MATRIX_SIZE, dtype=timed_dtype)
        A @ A
        durations = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            A @ A
            durations.append(time.perf_counter() - start)
        best_time[timed_dtype] = min(durations)
    return best_time[dtype] / best_time[torch.float32]
