"""How long a run of training will take on a CPU: at best before its first step, measured at its tenth."""

import time
from collections.abc import Callable
from functools import cache

from rheoscope.models.recipes import Recipe
from rheoscope.models.train import Figures

TOLD_AT = 10
"""Steps after which the pace of a run is known."""
LONG = 3600.0
"""Seconds from which on a person wants to know before it begins."""
PRODUCTS = 6
"""Multiplications and additions for each weight and token: two forwards, four backwards."""


def in_words(seconds: float) -> str:
    """A stretch of time as people say it.

    >>> in_words(8), in_words(200), in_words(9000), in_words(400_000)
    ('8 s', '3 min', '2 h 30 min', '4.6 days')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < LONG:
        return f"{seconds / 60:.0f} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02} min" if hours < 48 else f"{seconds / 86400:.1f} days"


@cache
def speed() -> float:
    """Multiplications and additions a second in products of matrices: no step is faster than that. Measured once in a process."""
    import torch

    A, rounds = torch.randn(384, 384), 0
    began = time.perf_counter()
    while time.perf_counter() - began < 0.1:
        A @ A
        rounds += 1
    return rounds * 2 * 384.0**3 / (time.perf_counter() - began)


def at_best(recipe: Recipe, steps: int, speed: float) -> float:
    """Seconds that the products of matrices alone take, in so many steps of a recipe.

    >>> from rheoscope.models.recipes import tiny
    >>> at_best(tiny(), 200, 1e10) < 60
    True
    """
    import torch

    from rheoscope.models.transformer import build, parameter_count

    with torch.device("meta"):
        weights = parameter_count(build(recipe.config))
    return PRODUCTS * weights * recipe.batch * recipe.context * steps / speed


def beforehand(recipe: Recipe, begun: int, speed: float) -> str:
    """What a person should know before the first step; nothing where a run may end within the hour."""
    steps = recipe.steps - begun
    seconds = at_best(recipe, steps, speed)
    if seconds < LONG:
        return ""
    few = max(1, int(steps * LONG / 6 / seconds))
    return (
        f"{steps:,} steps take {in_words(seconds)} or more on this CPU; type --device cuda where there is a GPU, or fewer: "
        f"--steps {begun + few} is ten minutes or more, --set batch=… width=… make a step cheaper"
    )


def telling_pace(recipe: Recipe, begun: int, say: Callable[[str], object]) -> Callable[[Figures], None]:
    """Hears every step and says, once the pace is known, how long the whole run will take."""
    clock: list[float] = []

    def hear(figures: Figures) -> None:
        done = int(figures["step"]) - begun
        if done == 1:
            clock.append(time.perf_counter())
        rest = recipe.steps - int(figures["step"])
        if done == TOLD_AT and clock and rest:
            pace = (time.perf_counter() - clock[0]) / (TOLD_AT - 1)  # the first step also warms up
            say(f"{rest:,} steps to go will take about {in_words(pace * rest)} on this CPU ({pace:.2g} s a step)")

    return hear
