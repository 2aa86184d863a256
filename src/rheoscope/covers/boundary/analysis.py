"""The prompt as boundary condition: where the same tokens would settle, and how stiffly, after other first tokens."""

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.covers.fixed_point.analysis import Cloud, Map, angles, chosen_layers, directions, layer_map, orbit
from rheoscope.covers.fixed_point.analysis import kernel as of_map
from rheoscope.covers.layer_inputs import provenance
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.model import Model, as_list
from rheoscope.space.trace import Trace
from rheoscope.statistics.nulls import permutations

if TYPE_CHECKING:
    import xarray

Points = Float[Tensor, "_ d"]
"""The cloud of one text; every text may have a length of its own."""
Places = Int[Tensor, " n"]
Counted = Int[Tensor, " k"]
JACOBIAN = ("jacobian_norm", "jacobian_norm_error", "jacobian_radius", "jacobian_radius_error")
OF_MAP = ("residual", "settling", *JACOBIAN)
ORDERS = 64
"""Random orders that are tried until two differ from the text."""


@torch.no_grad()
def boundary(
    model: Model,
    texts: Any,
    layers: Sequence[int] | None = None,
    times: int = 8,
    iterations: int = 20,
    seed: int = 0,
    keep_massive: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """How much the fixed points of a layer depend on the boundary: texts that end alike and begin differently.

    **Answers** "after another prefix, are the same tokens read elsewhere, would they settle elsewhere, is the layer stiffer?"

    **Formula** the tokens that all texts end with (and those that all begin with) are shared; the others are the boundary. T is
    the layer's map, T(X) = X + attention + MLP; the shared tokens follow X ← T(X) while the boundary stays at the points that the
    layer reads. Their directions x/‖x‖ are compared with those of the first text, before and after `times` applications.

    **Shapes** `texts`: two or more, strings or lists of token ids, of any lengths; they must share their last token. Of one text alone
    two others are made: the tokens of its first half, all but the very first (a special token in many models), in two other orders.

    **Gives** (text, layer): `change`, `settled`, `residual`, `jacobian_norm`, `jacobian_radius` with their errors; (text, layer, token):
    `change_token`, `settled_token`; (text, layer, time): `settling`; (layer): `change_null`, `settled_null`. The coordinate `boundary`
    has the tokens that differ, `token` counts in the first text, `after` says whether a shared token comes after the boundary.

    **Laws** the same boundary gives 0 and equal numbers; in a causal model nothing changes before the boundary, bit for bit; norm and
    radius are those of the dense Jacobian between shared tokens; the first and another text may change places.

    **Siblings** `fixed_point` looks at one text, its first tokens as free as the others.

    >>> import rheoscope as rs
    >>> texts = ["The keys to the cabinet are on the table", "A dog and the cabinet are on the table"]
    >>> found = rs.boundary(rs.load(), texts, layers=[2], iterations=3)
    >>> found.boundary.values.tolist(), bool((found.change[0] == 0).all() and (found.change[1] > 0).all())
    (['The keys to', 'A dog and'], True)
    """
    chosen = chosen_layers(model.view, layers, times, iterations)
    asked = as_list(texts)
    traces = [model.trace(text) for text in (asked if len(asked) > 1 else reordered(model.ids(asked[0]), seed))]
    places, before = shared(traces)
    kept = _counted(traces, places, before, keep_massive)
    rows: list[dict[str, Tensor]] = []
    for layer in chosen:
        maps = [layer_map(trace, layer) for trace in traces]
        rows.append(kernel(maps, [trace.read_by(layer) for trace in traces], places, kept, times, iterations, seed))
        if progress is not None:
            progress(len(rows), len(chosen))
    settings = {"iterations": iterations, "times": times, "seed": seed, "massive": [t.massive() for t in traces]}
    settings |= {"texts": [trace.text or "".join(trace.tokens) for trace in traces]}
    attributes = provenance(traces[0], keep_massive, space="raw") | settings
    return BOUNDARY.answer(_values(rows), _coords(traces, chosen, places, before, times), attributes)


def reordered(ids: Int[Tensor, " n"], seed: int) -> list[Int[Tensor, " n"]]:
    """A text, and the same with the tokens of its first half (the very first stays) in two other orders.

    >>> [one.tolist()[3:] for one in reordered(torch.tensor([5, 6, 7, 8]), seed=0)]
    [[8], [8], [8]]
    """
    half = max(1, min(max(3, len(ids) // 2), len(ids) - 1))
    orders = [torch.cat([ids[:1], ids[1:half][order], ids[half:]]) for order in permutations(half - 1, ORDERS, seed)]
    others = [one for one in orders if not torch.equal(one, ids)]
    if not others:
        raise RheoscopeError(
            f"the first half of this text of {len(ids)} tokens has no other order; type two texts that end alike, or a longer one"
        )
    return [ids, *others[:2]]


def shared(traces: Sequence[Trace]) -> tuple[list[Places], int]:
    """Where the tokens that all texts have in common stand in each, and how many of them come before what differs."""
    ids = [trace.ids.tolist() for trace in traces]
    end = _alike([one[::-1] for one in ids])
    if not end:
        raise RheoscopeError(
            f"the texts end in different tokens ({', '.join(repr(t.tokens[-1]) for t in traces)}), so nothing is shared after the "
            "boundary; type texts that end alike"
        )
    start = min(_alike(ids), min(map(len, ids)) - end)
    device = traces[0].points.device
    return [torch.tensor([*range(start), *range(len(one) - end, len(one))], device=device) for one in ids], start


def _alike(rows: list[list[int]]) -> int:
    """How many first entries all rows have in common."""
    return len(list(takewhile(lambda column: len(set(column)) == 1, zip(*rows, strict=False))))


def _counted(traces: Sequence[Trace], places: list[Places], before: int, keep_massive: bool) -> Counted:
    """Which of the shared tokens means are over: those after the boundary that are massive in no text."""
    there = torch.stack([trace.ordinary(keep_massive)[at] for trace, at in zip(traces, places, strict=True)]).all(0)
    there[:before] = False
    if not bool(there.any()):
        raise RheoscopeError("every token after the boundary is massive in one of the texts; type keep_massive=True")
    return there.nonzero()[:, 0]


def kernel(
    maps: Sequence[Map],
    points: Sequence[Points],
    places: Sequence[Places],
    kept: Counted,
    times: int,
    iterations: int,
    seed: int,
) -> dict[str, Tensor]:
    """All numbers of one layer, a row a text: its map, the points that it reads, and the places of the shared tokens there."""
    rows, ways = [], []
    for T, x, at in zip(maps, points, places, strict=True):
        inner = held(T, x, at)
        found = of_map(inner, x[at], kept, times, iterations, torch.Generator().manual_seed(seed))
        rows.append({name: found[name] for name in OF_MAP})
        ways.append(directions(orbit(inner, x[at], times)[[0, -1]]))
    turned = torch.stack([angles(way, ways[0]) for way in ways])
    tables = {name: torch.stack([row[name] for row in rows]) for name in OF_MAP}
    for end, name in enumerate(("change", "settled")):
        tables[f"{name}_token"] = turned[:, end]
        tables[name] = turned[:, end, kept].mean(-1)
        tables[f"{name}_null"] = _between(ways[0][end, kept])
    return tables


def held(T: Map, x: Float[Tensor, "all d"], at: Places) -> Map:
    """T of the tokens at some places alone, all others held where they are."""
    return lambda inner: T(x.index_copy(0, at, inner))[at]


def _between(directions: Cloud) -> Float[Tensor, ""]:
    """Mean angle between two different tokens; NaN for one."""
    first, second = torch.triu_indices(len(directions), len(directions), 1, device=directions.device)
    return angles(directions[first], directions[second]).mean()


def _values(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Layers side by side, behind the texts where there are texts."""
    fields = BOUNDARY.fields
    return {name: torch.stack([row[name] for row in rows], fields[name].dims.index("layer")) for name in rows[0]}


def _coords(
    traces: Sequence[Trace], layers: list[int], places: list[Places], before: int, times: int
) -> dict[str, Any]:
    differ = ["".join(t.tokens[before : len(t) - len(at) + before]) for t, at in zip(traces, places, strict=True)]
    return {
        "text": range(len(traces)),
        "boundary": ("text", [one.strip() for one in differ]),
        "layer": layers,
        "token": places[0].tolist(),
        "after": ("token", [at >= before for at in range(len(places[0]))]),
        "time": range(1, times + 1),
    }


OF_TEXT = ("text", "layer")
BOUNDARY = Analysis(
    name="boundary",
    question="After other first words, are the same tokens read elsewhere, and would they settle elsewhere?",
    ask=boundary,
    needs="model",
    fields={
        "change": Field(
            OF_TEXT,
            "mean of change_token over the shared tokens after the boundary that are massive in no text",
            "radians",
            null="change_null",
        ),
        "change_token": Field(
            (*OF_TEXT, "token"),
            "angle between the directions x/‖x‖ of a shared token as the layer reads it in this text and in the first one",
            "radians",
        ),
        "change_null": Field(
            ("layer",),
            "mean angle between two different ones of these tokens in the first text: how far tokens lie apart anyway",
            "radians",
        ),
        "settled": Field(
            OF_TEXT,
            "mean of settled_token over the shared tokens after the boundary that are massive in no text",
            "radians",
            null="settled_null",
        ),
        "settled_token": Field(
            (*OF_TEXT, "token"),
            "as change_token, after the layer was applied `times` times to the shared tokens, the boundary held where it is",
            "radians",
        ),
        "settled_null": Field(
            ("layer",),
            "mean angle between two different ones of these tokens in the first text, after the same",
            "radians",
        ),
        "residual": Field(
            OF_TEXT, "‖T(X) − X‖/‖X‖ of the shared tokens after the boundary, X as the layer reads them in this text"
        ),
        "settling": Field(
            (*OF_TEXT, "time"),
            "mean angle by which their directions still turn at each application, the boundary held",
            "radians",
        ),
        "jacobian_norm": Field(
            OF_TEXT,
            "largest singular value of ∂T/∂X between shared tokens, the boundary held, by Lanczos",
        ),
        "jacobian_norm_error": Field(
            OF_TEXT, "a singular value lies so near to jacobian_norm: from the residual of the iteration", basis=True
        ),
        "jacobian_radius": Field(
            OF_TEXT,
            "largest |eigenvalue| of the same, by Arnoldi: below 1 the layer is locally contracting here, the boundary held",
        ),
        "jacobian_radius_error": Field(
            OF_TEXT,
            "how far off jacobian_radius may be, on either side, to first order: residual of Arnoldi's vector times the condition number",
            basis=True,
        ),
    },
)
