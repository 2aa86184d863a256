"""How long a run of training will take on a CPU: at best before its first step, measured at its tenth."""

import time
from collections.abc import Callable
from functools import cache

from rheoscope.models.recipes import Recipe
from rheoscope.models.train import Metrics

PACE_STEPS = 10
"""Steps after which the pace of a run is known."""
LONG_RUN_SECONDS = 3600.0
"""Seconds from which on a person wants to know before it begins."""
FLOPS_PER_WEIGHT = 6
"""Multiplications and additions for each weight and token: two forwards, four backwards."""


def format_duration(seconds: float) -> str:
    """A stretch of time as people say it.

    >>> format_duration(8), format_duration(200), format_duration(9000), format_duration(400_000)
    ('8 s', '3 min', '2 h 30 min', '4.6 days')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < LONG_RUN_SECONDS:
        return f"{seconds / 60:.0f} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02} min" if hours < 48 else f"{seconds / 86400:.1f} days"


@cache
def measure_flop_rate() -> float:
    """Multiplications and additions a second in products of matrices: no step is faster than that. Measured once in a process."""
    import torch

    A, n_products = torch.randn(384, 384), 0
    start = time.perf_counter()
    while time.perf_counter() - start < 0.1:
        A @ A
        n_products += 1
    return n_products * 2 * 384.0**3 / (time.perf_counter() - start)


def min_training_seconds(recipe: Recipe, steps: int, flop_rate: float) -> float:
    """Seconds that the products of matrices alone take, in so many steps of a recipe.

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
    """What a person should know before the first step; nothing where a run may end within the hour."""
    steps = recipe.steps - start_step
    seconds = min_training_seconds(recipe, steps, flop_rate)
    if seconds < LONG_RUN_SECONDS:
        return ""
    suggested_steps = max(1, int(steps * LONG_RUN_SECONDS / 6 / seconds))
    return (
        f"{steps:,} steps take {format_duration(seconds)} or more on this CPU; type --device cuda where there is a GPU, or fewer: "
        f"--steps {start_step + suggested_steps} is ten minutes or more, --set batch=… width=… make a step cheaper"
    )


def pace_reporter(recipe: Recipe, start_step: int, log: Callable[[str], object]) -> Callable[[Metrics], None]:
    """Hears every step and says, once the pace is known, how long the whole run will take."""
    start_times: list[float] = []

    def on_figures(figures: Metrics) -> None:
        steps_done = int(figures["step"]) - start_step
        if steps_done == 1:
            start_times.append(time.perf_counter())
        steps_left = recipe.steps - int(figures["step"])
        if steps_done == PACE_STEPS and start_times and steps_left:
            seconds_per_step = (time.perf_counter() - start_times[0]) / (PACE_STEPS - 1)  # the first step also warms up
            log(
                f"{steps_left:,} steps to go will take about {format_duration(seconds_per_step * steps_left)} "
                f"on this CPU ({seconds_per_step:.2g} s a step)"
            )

    return on_figures
