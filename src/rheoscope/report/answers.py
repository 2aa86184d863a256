"""Everything that is asked of one text: each analysis of the flow, or the line that says why it has no answer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rheoscope.covers.operators import operators
from rheoscope.covers.scores import scores
from rheoscope.flow.clusters import clusters
from rheoscope.flow.kept import kept
from rheoscope.flow.readout import readout
from rheoscope.flow.trajectory import trajectory
from rheoscope.flow.transport import transport
from rheoscope.shapes import RheoscopeError
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

Ask = Callable[[Any, Trace, str], "xarray.Dataset"]
MANY = 256
"""Tokens from which the null of the kept geometry takes fewer draws: each costs all pairs."""


def _kept(trace: Trace, space: str) -> "xarray.Dataset":
    left = len(trace) - len(trace.massive())
    return kept(trace, space, k=max(1, min(5, left - 2)), draws=20 if left <= MANY else 4)


ANALYSES: dict[str, Ask] = {
    "readout": lambda model, trace, space: readout(model.view, trace),
    "trajectory": lambda model, trace, space: trajectory(trace, space),
    "transport": lambda model, trace, space: transport(trace, space),
    "kept": lambda model, trace, space: _kept(trace, space),
    "clusters": lambda model, trace, space: clusters(trace, space),
    "scores": lambda model, trace, space: scores(trace),
}
"""Name → how it is asked, in the order of the report. A new analysis of the flow is a line here and a file in plot/."""
WEIGHTS: dict[str, Ask] = {"operators": lambda model, trace, space: operators(model.view)}
"""What is asked of the weights alone."""


@dataclass(frozen=True, eq=False)
class Answers:
    """One text: its Trace, what each analysis found, and why some found nothing."""

    trace: Trace
    found: dict[str, "xarray.Dataset"]
    left_out: dict[str, str]


def answers(
    model: Any, trace: Trace, space: str = "raw", asked: dict[str, Ask] = ANALYSES, tell: Callable[[str], object] = str
) -> Answers:
    """Ask everything; an analysis that refuses this text is left out, with its reason. `tell` hears what is going on.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> sorted(answers(model, model.trace("a")).left_out)
    ['clusters', 'kept']
    """
    found, left_out = {}, {}
    for name, ask in asked.items():
        tell(name)
        try:
            found[name] = ask(model, trace, space)
        except RheoscopeError as error:
            left_out[name] = str(error)
    return Answers(trace, found, left_out)
