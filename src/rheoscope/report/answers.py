"""Everything that is asked of one text: each analysis, or the line that says why it has no answer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.covers.agreement import agreement
from rheoscope.covers.head_types import head_types
from rheoscope.covers.operators import operators
from rheoscope.covers.scores import scores
from rheoscope.covers.torn import torn
from rheoscope.flow.clusters import clusters
from rheoscope.flow.energy import energy
from rheoscope.flow.kept import kept
from rheoscope.flow.massive import massive
from rheoscope.flow.purity import purity
from rheoscope.flow.readout import readout
from rheoscope.flow.trajectory import trajectory
from rheoscope.flow.transport import transport
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Model
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

Found = dict[str, "xarray.Dataset"]
Ask = Callable[[Model, Trace, str, Found], "xarray.Dataset"]
"""From a model, a text, a space and what was found before to an answer."""


DRAWS = 20
"""Random heads that each head is compared with in a report; `rheoscope covers --draws` takes more."""


def types_of(model: Model) -> "xarray.Dataset | None":
    """The types of heads that colour maps, or none where the model cannot read the probe (few tokens, short texts)."""
    try:
        return head_types(model)
    except RheoscopeError:
        return None


def _torn(model: Model, trace: Trace, found: Found) -> "xarray.Dataset":
    """The pairs of the head that is furthest from reading similarity."""
    if "agreement" not in found:
        raise RheoscopeError("pairs are shown of the head furthest from similarity, and agreement has no answer")
    layer, head = furthest(found["agreement"])
    return torn(model.view, trace, layer, head)


def furthest(found: "xarray.Dataset") -> tuple[int, int]:
    """The head that reads similarity least."""
    layer, head = np.unravel_index(int(np.nanargmin(found.agreement.values)), found.agreement.shape)
    return int(layer), int(head)


def _kept(trace: Trace, space: str) -> "xarray.Dataset":
    left = len(trace) - len(trace.massive())
    return kept(trace, space, k=max(1, min(5, left - 2)))


def _purity(trace: Trace, space: str, found: Found) -> "xarray.Dataset":
    return purity(trace, found["clusters"] if "clusters" in found else clusters(trace, space), draws=100)


ANALYSES: dict[str, Ask] = {
    "readout": lambda model, trace, space, found: readout(model.view, trace),
    "trajectory": lambda model, trace, space, found: trajectory(trace, space),
    "transport": lambda model, trace, space, found: transport(trace, space),
    "kept": lambda model, trace, space, found: _kept(trace, space),
    "clusters": lambda model, trace, space, found: clusters(trace, space),
    "purity": lambda model, trace, space, found: _purity(trace, space, found),
    "massive": lambda model, trace, space, found: massive(trace),
    "energy": lambda model, trace, space, found: energy(model.view, trace),
    "scores": lambda model, trace, space, found: scores(trace),
    "agreement": lambda model, trace, space, found: agreement(model.view, trace, DRAWS),
    "torn": lambda model, trace, space, found: _torn(model, trace, found),
    "head_types": lambda model, trace, space, found: head_types(model),
}
"""Name → how it is asked, in the order of the report. A new analysis is a line here and a file in plot/."""
WEIGHTS: dict[str, Ask] = {"operators": lambda model, trace, space, found: operators(model.view)}
"""What is asked of the weights alone."""


@dataclass(frozen=True, eq=False)
class Answers:
    """One text: its Trace, what each analysis found, and why some found nothing."""

    trace: Trace
    found: dict[str, "xarray.Dataset"]
    left_out: dict[str, str]


def answers(
    model: Model,
    trace: Trace,
    space: str = "raw",
    asked: dict[str, Ask] = ANALYSES,
    tell: Callable[[str], object] = str,
) -> Answers:
    """Ask everything; an analysis that refuses this text is left out, with its reason. `tell` hears what is going on.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> sorted(answers(model, model.trace("a")).left_out)
    ['agreement', 'clusters', 'kept', 'purity', 'torn']
    """
    found: Found = {}
    left_out: dict[str, str] = {}
    for name, ask in asked.items():
        tell(name)
        try:
            found[name] = ask(model, trace, space, found)
        except RheoscopeError as error:
            left_out[name] = str(error)
    return Answers(trace, found, left_out)
