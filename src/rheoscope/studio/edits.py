"""Edits as values: which head, which of its operators, what happens to it; several of them as one change a layer."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from rheoscope.attention.definition import for_every_head, positions, scores
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.position import NoPosition
from rheoscope.covers.ablation import mean_outputs
from rheoscope.covers.operation import Operation, changed
from rheoscope.covers.pieces import kept_tokens
from rheoscope.covers.replacements import CONTENT, RELEVANCE, named
from rheoscope.shapes import RheoscopeError
from rheoscope.space.form import Form, columns, less, own_form, times, with_columns
from rheoscope.space.head import Heads
from rheoscope.space.model import LayerEdit, Rewrite
from rheoscope.space.operator import Factored
from rheoscope.space.share import exact
from rheoscope.space.trace import Trace
from rheoscope.space.view import View

Part = Literal["M", "F", "both"]
Name = Literal["symmetric", "skew", "rank", "offset0", "ablate", "scale"]
At = tuple[int, int]
"""Layer and head."""
Kept = Bool[Tensor, " n"]
"""Which tokens make the mean of the cloud."""
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


@dataclass(frozen=True, eq=False)
class Before:
    """What edits need to know of a text in the model as it is: which tokens make its mean, and the mean outputs of heads."""

    kept: Kept
    means: list[Float[Tensor, "h e"]]


@torch.no_grad()
def before(trace: Trace, edits: Sequence[Edit]) -> Before:
    """The means are there where a head is silenced."""
    kept = kept_tokens(trace)
    return Before(kept, mean_outputs(trace, kept) if ablated(edits) else [])


@torch.no_grad()
def live(view: View, texts: Sequence[Before], edits: Sequence[Edit]) -> dict[int, Rewrite]:
    """All edits as one change a layer, for texts side by side: each is centred by its own mean, and silenced to its own.

    Shorter texts are padded on the right.
    """
    made, silent = operations(view, edits), ablated(edits)
    longest = max(len(one.kept) for one in texts)
    kept = torch.stack([pad(one.kept, (0, longest - len(one.kept))) for one in texts])
    found = {}
    for layer in sorted({one.layer for one in edits}):
        mine = [one for at, one in made.items() if at[0] == layer and (one.form or one.content is not None)]
        quiet = [head for at, head in silent if at == layer]
        silencing = _silencing(torch.stack([one.means[layer] for one in texts]), quiet) if quiet else None
        if mine or quiet:
            found[layer] = Rewrite(partial(_one_after_the_other, mine, silencing, kept))
    return found


def _silencing(means: Float[Tensor, "b h e"], heads: list[int]) -> LayerEdit:
    """These heads give every token of a text the same: their mean over it."""

    def change(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        new = out.clone()
        new[:, heads] = means[:, heads, None].to(out)
        return new

    return change


def _one_after_the_other(
    made: Sequence[Operation],
    silencing: LayerEdit | None,
    kept: Tensor,
    x: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mechanism: Mechanism,
    out: Tensor,
) -> tuple[Tensor, Tensor | None]:
    beside: Tensor | None = None
    for one in made:
        out, more = changed(one, kept, x, q, k, v, mechanism, out)
        beside = more if beside is None or more is None else beside + more
    return out if silencing is None else silencing(q, k, v, mechanism, out), beside


# What an edited head looks at


@torch.no_grad()
def map_of(trace: Trace, kept: Kept, edits: Sequence[Edit], layer: int, head: int, kind: str) -> Float[Tensor, "n n"]:
    """Weights or scores (before the mask) of one head, as it is under the edits."""
    one = operations(trace.view, [e for e in edits if (e.layer, e.head) == (layer, head)]).get((layer, head))
    if one is None or not one.form:
        return trace.weights(layer, head) if kind == "weights" else trace.scores(layer, head)
    heads, x = trace.view.heads_of(layer, head), trace.read_by(layer)
    hat = heads.norm.hat(exact(x))
    more = columns(heads, one.form, hat - hat[kept].mean(0), hat, [head])
    mechanism, q, k = _placed(heads, x, head)
    mechanism, q, k = with_columns(mechanism, q, k, more)
    if kind == "weights":
        return mechanism.weights(q, k)[0, 0]
    i, j = positions(len(x), len(x), x.device)
    return scores(Mechanism(mechanism.score, position=mechanism.position), q, k, i, j)[0, 0]


def _placed(heads: Heads, x: Float[Tensor, "n d"], head: int) -> tuple[Mechanism, Tensor, Tensor]:
    """Queries and keys of one head as the running model has them: turned already, so that further columns are not."""
    q, k, _ = heads.read(x)
    q, k = q[:, [head]], for_every_head(k, heads.count)[:, [head]]
    mechanism, (i, j) = heads.mechanism.of_heads([head]), positions(len(x), len(x), x.device)
    if not mechanism.position.moves:
        return mechanism, q, k
    turn = mechanism.position.place
    return replace(mechanism, position=NoPosition()), turn(q, i), turn(k, j)
