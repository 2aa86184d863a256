"""A bar on stderr while something takes long, and nothing where stderr is a file or a pipe."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from rheoscope.report.console import console
from rheoscope.report.threads import use_idle_cores

if TYPE_CHECKING:
    from rheoscope.space.running import Running


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """While it is open, tell it how many are done, and of how many.

    >>> with progress("counting") as tell:
    ...     tell(1, 2)
    """
    from rich.markup import escape
    from rich.progress import Progress

    where = console(stderr=True)
    with Progress(console=where, transient=True, disable=not where.is_terminal) as bars:
        bar = bars.add_task(escape(what), total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)


@contextmanager
def asking_bar() -> Iterator[Callable[[str], Callable[[int, int], None]]]:
    """While it is open, tell it what is asked; it gives what hears how much of that is done.

    >>> with asking_bar() as tell:
    ...     tell("transport")(1, 2)
    """
    from rich.progress import Progress

    where = console(stderr=True)
    with Progress(console=where, transient=True, disable=not where.is_terminal) as bars:
        bar = bars.add_task("reading", total=None)

        def tell(what: str) -> Callable[[int, int], None]:
            bars.reset(bar, description=what, total=None)
            return lambda done, total: bars.update(bar, completed=done, total=total)

        yield tell


def opened(
    source: str | None, device: str | None, dtype: str | None, untrained: bool = False, seed: int = 0
) -> "Running":
    """`rheoscope.load` with a bar and on idle cores, as every command opens its model."""
    use_idle_cores()
    with progress(f"loading {source or 'the default model'}") as tell:
        from rheoscope.opening import load

        return load(source, device=device, dtype=dtype, untrained=untrained, seed=seed, progress=tell)


LARGE = 30_000_000
"""Weights of a model from which on one untrained control stands beside it, not several."""


def untrained_controls(
    model: "Running", source: str | None, device: str | None, dtype: str | None, count: int | None = None
) -> "Sequence[Callable[[], Running]]":
    """Each makes the same architecture at initial weights: as often as is asked for, or as the size of the model allows."""
    from rheoscope.opening import load
    from rheoscope.report.asking import MOST

    weights = sum(weight.numel() for weight in model.network.parameters())
    many = count if count is not None else MOST if weights < LARGE else 1
    return [partial(load, source, device=device, dtype=dtype, untrained=True, seed=seed) for seed in range(many)]
