"""Estimates of the training time on a CPU: a lower bound before the first step and a measurement after ten steps."""

import time
from collections.abc import Callable
from functools import cache

from rheoscope.messages.message import Message
from rheoscope.models.recipes import Recipe
from rheoscope.models.train import Metrics

PACE_STEPS = 10
"""The number of steps after which the pace is measured."""
LONG_RUN_SECONDS = 3600.0
"""Runs that take longer than this are announced before the first step."""
FLOPS_PER_WEIGHT = 6
"""FLOPs per weight and token: two in the forward pass, four in the backward pass."""


def format_duration(seconds: float) -> Message:
    """A duration with the usual units.

    >>> format_duration(8.0), format_duration(200.0), format_duration(9000.0), format_duration(400_000.0)
    ('8 s', '3 min', '2 h 30 min', '4.6 days')
    """
    if seconds < 90:
        return Message("{seconds:.0f} s", seconds=seconds)
    if seconds < LONG_RUN_SECONDS:
        return Message("{minutes:.0f} min", minutes=seconds / 60)
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 48:
        return Message("{hours} h {minutes:02} min", hours=hours, minutes=minutes)
    return Message("{days:.1f} days", days=seconds / 86400)


@cache
def measure_flop_rate() -> float:
    """FLOPs per second of matrix products, an upper bound for any step. Measured once per process."""
    import torch

    A, n_products = torch.randn(384, 384), 0
    start = time.perf_counter()
    while time.perf_counter() - start < 0.1:
        A @ A
        n_products += 1
    return n_products * 2 * 384.0**3 / (time.perf_counter() - start)


def min_training_seconds(recipe: Recipe, steps: int, flop_rate: float) -> float:
    """The time of the matrix products alone over a number of steps.

    >>> from rheoscope.models.recipes import tiny
    >>> min_training_seconds(tiny(), 200, 1e10) < 60
    True
    """
    import torch

    from rheoscope.models.transformer import build, parameter_count

    with torch.device("meta"):
        n_weights = parameter_count(build(recipe.config))
    return FLOPS_PER_WEIGHT * n_weights * recipe.batch * recipe.context * steps / flop_rate


def long_run_warning(recipe: Recipe, start_step: int, flop_rate: float) -> str:
    """A warning before the first step; empty if the run may finish within the hour."""
    steps = recipe.steps - start_step
    seconds = min_training_seconds(recipe, steps, flop_rate)
    if seconds < LONG_RUN_SECONDS:
        return ""
    suggested_steps = max(1, int(steps * LONG_RUN_SECONDS / 6 / seconds))
    return Message(
        "{steps:,} steps take {duration} or more on this CPU; use --device cuda if there is a GPU, --steps {suggested} for ten "
        "minutes or more, or a smaller --set batch or width",
        steps=steps,
        duration=format_duration(seconds),
        suggested=start_step + suggested_steps,
    )


def pace_reporter(recipe: Recipe, start_step: int, log: Callable[[str], object]) -> Callable[[Metrics], None]:
    """A callback for every step that logs the expected duration once the pace is known."""
    start_times: list[float] = []

    def on_figures(figures: Metrics) -> None:
        steps_done = int(figures["step"]) - start_step
        if steps_done == 1:
            start_times.append(time.perf_counter())
        steps_left = recipe.steps - int(figures["step"])
        if steps_done == PACE_STEPS and start_times and steps_left:
            seconds_per_step = (time.perf_counter() - start_times[0]) / (
                PACE_STEPS - 1
            )  # without the first step, which also warms up
            log(
                Message(
                    "{steps:,} steps to go will take about {duration} on this CPU ({seconds:.2g} s per step)",
                    steps=steps_left,
                    duration=format_duration(seconds_per_step * steps_left),
                    seconds=seconds_per_step,
                )
            )

    return on_figures
