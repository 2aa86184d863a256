"""Edits as values: which head, which of its operators, what happens to it; several of them as one change a layer."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from rheoscope.covers.head_replacement import Operation
from rheoscope.covers.replacements import CONTENT, RELEVANCE, named
from rheoscope.shapes import RheoscopeError
from rheoscope.space.bilinear_form import Form, less, own_form, times
from rheoscope.space.operator import Factored
from rheoscope.space.view import View
from rheoscope.studio.edited_heads import Change

Part = Literal["M", "F", "both"]
Name = Literal["symmetric", "skew", "rank", "offset0", "ablate", "scale"]
At = tuple[int, int]
"""Layer and head."""
OPERATIONS: tuple[dict[str, Any], ...] = (
    {"name": "symmetric", "title": "the symmetric part", "takes": None, "parts": ["M", "F", "both"]},
    {"name": "skew", "title": "the skew part", "takes": None, "parts": ["M"]},
    {"name": "rank", "title": "the best copy of rank r", "takes": "rank", "parts": ["M", "F", "both"]},
    {"name": "offset0", "title": "M(0) at every offset", "takes": None, "parts": ["M"]},
    {"name": "scale", "title": "times a number", "takes": "factor", "parts": ["M", "F", "both"]},
    {"name": "ablate", "title": "its mean over the text", "takes": None, "parts": ["both"]},
)
"""What can be done to a head, as the page offers it."""
REPLACED = {"offset0": "at_zero"}
"""Names of the page that surgery calls otherwise."""
STRONGEST = 100.0


@dataclass(frozen=True)
class Edit:
    """One change of one head: `operation` on M (what it looks for), on F (what it carries) or on both.

    Every operator is replaced between tokens less the mean of their cloud, as `rs.surgery` does it.
    """

    layer: int
    head: int
    operation: Name
    part: Part = "M"
    value: float | int | None = None

    @property
    def told(self) -> dict[str, Any]:
        return asdict(self) | {"value": None if self.value is None else float(self.value)}


def checked(view: View, edits: Sequence[Edit]) -> None:
    """Refuse an edit that this model has no place for, before anything runs."""
    for one in edits:
        view.heads_of(one.layer, one.head)
        offered = next(row for row in OPERATIONS if row["name"] == one.operation)
        if one.part not in offered["parts"] and one.operation != "ablate":
            raise RheoscopeError(
                f"{one.operation} is an operation on {' or '.join(offered['parts'])}, got {one.part!r}"
            )
        if (offered["takes"] is None) == (one.value is not None):
            takes = "no value" if offered["takes"] is None else f"a value, its {offered['takes']}"
            raise RheoscopeError(f"{one.operation} takes {takes}, got {one.value!r}")
        if one.value is not None and not abs(one.value) <= max(STRONGEST, view.width):
            raise RheoscopeError(f"a value lies within ±{max(STRONGEST, view.width):.0f}, got {one.value!r}")


@torch.no_grad()
def operations(view: View, edits: Sequence[Edit]) -> dict[At, Operation]:
    """What every edited head does instead, edits of one head one after the other; silenced heads do nothing else."""
    silent = ablated(edits)
    found = {}
    for at in dict.fromkeys((one.layer, one.head) for one in edits):
        mine = [one for one in edits if (one.layer, one.head) == at]
        if at not in silent:
            found[at] = _operation(view, at, mine)
    return found


def ablated(edits: Sequence[Edit]) -> list[At]:
    return [(one.layer, one.head) for one in edits if one.operation == "ablate"]


def _operation(view: View, at: At, edits: Sequence[Edit]) -> Operation:
    heads = view.heads_of(*at)
    of_form = [one for one in edits if one.part in ("M", "both")]
    of_content = [one for one in edits if one.part in ("F", "both")]
    form: Form = ()
    if of_form:
        own = new = own_form(heads)
        for one in of_form:
            new = _form(one, heads, new)
        form = less(new, own)
    content = None
    if of_content:
        old = carried = heads.F().exact()
        for one in of_content:
            carried = _content(one, heads, carried)
        content = carried + old * -1.0
    return Operation(at[0], heads, [at[1]], form, content)


def _form(one: Edit, heads: Any, own: Form) -> Form:
    if one.operation == "scale":
        return times(own, float(one.value or 0.0))
    if one.operation == "rank" and len(own) > 1:
        raise RheoscopeError("a rank is taken of M itself; type the rank before the other edits of this head")
    return _replaced(one, RELEVANCE, "M")(heads, own)


def _content(one: Edit, heads: Any, own: Factored) -> Factored:
    return own * float(one.value or 0.0) if one.operation == "scale" else _replaced(one, CONTENT, "F")(heads, own)


def _replaced(one: Edit, table: Any, what: str) -> Callable[[Any, Any], Any]:
    name = f"rank {int(one.value or 0)}" if one.operation == "rank" else REPLACED.get(one.operation, one.operation)
    found = named(name, table, what)
    return lambda heads, own: found.make(heads, own, found.rank)


@torch.no_grad()
def changes(view: View, edits: Sequence[Edit]) -> dict[int, Change]:
    """All edits as one change a layer; what silenced heads give is not said, since every text has its own. Times 1 is none."""
    made, silent = operations(view, edits), ablated(edits)
    found = {}
    for layer in sorted({one.layer for one in edits}):
        mine = [one for at, one in made.items() if at[0] == layer and (one.form or one.content is not None)]
        quiet = [head for at, head in silent if at == layer]
        if mine or quiet:
            found[layer] = Change(mine, quiet)
    return found
