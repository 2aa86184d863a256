"""A warning if this CPU multiplies matrices much more slowly in the requested dtype than in float32."""

import time
from functools import cache
from typing import TYPE_CHECKING

import torch

from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message
from rheoscope.report.console import console

if TYPE_CHECKING:
    from rheoscope.running.runner import RunnableModel

MATRIX_SIZE, REPEATS, SLOW_RATIO = 128, 3, 4.0
"""The size of the matrices, the number of products, and the slowdown from which on there is a warning."""


def warn_if_slow(model: "RunnableModel") -> None:
    """Warn once on stderr if products in the dtype of the model are slow."""
    dtype = model.view.dtype
    if model.device.type == "cpu" and dtype in (torch.bfloat16, torch.float16):
        _warn_once(dtype)


@cache
def _warn_once(dtype: torch.dtype) -> None:
    slowdown = dtype_slowdown(dtype)
    if slowdown > SLOW_RATIO:
        name = str(dtype).removeprefix("torch.")
        console(stderr=True).print(
            render(
                Message(
                    "On this CPU a matrix product in {dtype} takes {slowdown:.0f} times as long as in float32; type {step}",
                    dtype=name,
                    slowdown=slowdown,
                    step="--dtype float32",
                )
            ),
            soft_wrap=True,
        )


def dtype_slowdown(dtype: torch.dtype) -> float:
    """The time of a product relative to float32, each the best of a few."""
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
