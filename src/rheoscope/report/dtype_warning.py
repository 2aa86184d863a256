"""One line where a CPU multiplies far more slowly in the dtype that was asked for: nothing else would say why all takes so long."""

import time
from functools import cache
from typing import TYPE_CHECKING

import torch

from rheoscope.report.console import console

if TYPE_CHECKING:
    from rheoscope.running.runner import Running

SIZE, TIMES, FAR = 128, 3, 4.0
"""Rows of the matrices that are multiplied, how often, and how many times as long as in float32 is worth a line."""


def tell_if_slow(model: "Running") -> None:
    """Say once on stderr how many times as long a product takes, where it is many."""
    dtype = model.view.dtype
    if model.device.type == "cpu" and dtype in (torch.bfloat16, torch.float16):
        _tell(dtype)


@cache
def _tell(dtype: torch.dtype) -> None:
    times = slowness(dtype)
    if times > FAR:
        name = str(dtype).removeprefix("torch.")
        console(stderr=True).print(
            f"on this CPU a matrix product in {name} takes {times:.0f} times as long as in float32; type --dtype float32",
            soft_wrap=True,
        )


def slowness(dtype: torch.dtype) -> float:
    """How many times as long a product takes as in float32, the best of a few of each."""
    best = {}
    for one in (torch.float32, dtype):
        A = torch.ones(SIZE, SIZE, dtype=one)
        A @ A
        took = []
        for _ in range(TIMES):
            began = time.perf_counter()
            A @ A
            took.append(time.perf_counter() - began)
        best[one] = min(took)
    return best[dtype] / best[torch.float32]
