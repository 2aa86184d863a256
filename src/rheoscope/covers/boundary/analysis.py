"""The prompt as boundary condition: where the same tokens would settle, and how stiffly, after other first tokens."""

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.covers.fixed_point.analysis import Cloud, Map, angles, directions, layer_map, orbit, select_layers
from rheoscope.covers.fixed_point.analysis import kernel as fixed_point_values
from rheoscope.covers.layer_inputs import provenance
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.model import Model, as_text_list
from rheoscope.space.settings import Bounds, LayerIndex, Seed
from rheoscope.space.trace import Trace
from rheoscope.statistics.nulls import random_permutations

if TYPE_CHECKING:
    import xarray

TextPoints = Float[Tensor, "_ d"]
"""The cloud of one text; every text may have a length of its own."""
Positions = Int[Tensor, " n"]
IncludedIndices = Int[Tensor, " k"]
JACOBIAN_FIELDS = ("jacobian_norm", "jacobian_norm_error", "jacobian_radius", "jacobian_radius_error")
MAP_FIELDS = ("residual", "settling", *JACOBIAN_FIELDS)
MAX_ORDERS_TRIED = 64
"""Random orders that are tried until two differ from the text."""


@torch.no_grad()
def boundary(
    model: Model,
    texts: Any,
    layers: Sequence[LayerIndex] | None = None,
    times: Annotated[int, Bounds(1, 10_000)] = 8,
    iterations: Annotated[int, Bounds(1, 10_000)] = 20,
    seed: Seed = 0,
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
    layer_indices = select_layers(model.view, layers, times, iterations)
    text_list = as_text_list(texts)
    traces = [
        model.trace(text)
        for text in (text_list if len(text_list) > 1 else with_reorderings(model.ids(text_list[0]), seed))
    ]
    shared_positions, n_before = find_shared_tokens(traces)
    included_indices = _included_tokens(traces, shared_positions, n_before, keep_massive)
    rows: list[dict[str, Tensor]] = []
    for layer in layer_indices:
        maps = [layer_map(trace, layer) for trace in traces]
        rows.append(
            kernel(
                maps,
                [trace.layer_input(layer) for trace in traces],
                shared_positions,
                included_indices,
                times,
                iterations,
                seed,
            )
        )
        if progress is not None:
            progress(len(rows), len(layer_indices))
    settings = {"iterations": iterations, "times": times, "seed": seed, "massive": [t.massive_tokens() for t in traces]}
    settings |= {"texts": [trace.text or "".join(trace.tokens) for trace in traces]}
    attributes = provenance(traces[0], keep_massive, space="raw") | settings
    return BOUNDARY.label(_values(rows), _coords(traces, layer_indices, shared_positions, n_before, times), attributes)


def with_reorderings(ids: Int[Tensor, " n"], seed: int) -> list[Int[Tensor, " n"]]:
    """A text, and the same with the tokens of its first half (the very first stays) in two other orders.

    >>> [one.tolist()[3:] for one in with_reorderings(torch.tensor([5, 6, 7, 8]), seed=0)]
    [[8], [8], [8]]
    """
    half = max(1, min(max(3, len(ids) // 2), len(ids) - 1))
    reorderings = [
        torch.cat([ids[:1], ids[1:half][permutation], ids[half:]])
        for permutation in random_permutations(half - 1, MAX_ORDERS_TRIED, seed)
    ]
    distinct_reorderings = [candidate for candidate in reorderings if not torch.equal(candidate, ids)]
    if not distinct_reorderings:
        raise RheoscopeError(
            f"the first half of this text of {len(ids)} tokens has no other order; type two texts that end alike, or a longer one"
        )
    return [ids, *distinct_reorderings[:2]]


def find_shared_tokens(traces: Sequence[Trace]) -> tuple[list[Positions], int]:
    """Where the tokens that all texts have in common stand in each, and how many of them come before what differs."""
    ids = [trace.ids.tolist() for trace in traces]
    n_common_end = _common_prefix_length([text_ids[::-1] for text_ids in ids])
    if not n_common_end:
        raise RheoscopeError(
            f"the texts end in different tokens ({', '.join(repr(t.tokens[-1]) for t in traces)}), so nothing is shared after the "
            "boundary; type texts that end alike"
        )
    n_common_start = min(_common_prefix_length(ids), min(map(len, ids)) - n_common_end)
    device = traces[0].points.device
    return [
        torch.tensor([*range(n_common_start), *range(len(text_ids) - n_common_end, len(text_ids))], device=device)
        for text_ids in ids
    ], n_common_start


def _common_prefix_length(sequences: list[list[int]]) -> int:
    """How many first entries all rows have in common."""
    return len(list(takewhile(lambda column: len(set(column)) == 1, zip(*sequences, strict=False))))


def _included_tokens(
    traces: Sequence[Trace], shared_positions: list[Positions], n_before: int, keep_massive: bool
) -> IncludedIndices:
    """Which of the shared tokens means are over: those after the boundary that are massive in no text."""
    is_included = torch.stack(
        [trace.valid_mask(keep_massive)[positions] for trace, positions in zip(traces, shared_positions, strict=True)]
    ).all(0)
    is_included[:n_before] = False
    if not bool(is_included.any()):
        raise RheoscopeError("every token after the boundary is massive in one of the texts; type keep_massive=True")
    return is_included.nonzero()[:, 0]


def kernel(
    maps: Sequence[Map],
    points: Sequence[TextPoints],
    shared_positions: Sequence[Positions],
    included_indices: IncludedIndices,
    times: int,
    iterations: int,
    seed: int,
) -> dict[str, Tensor]:
    """All numbers of one layer, a row a text: its map, the points that it reads, and the places of the shared tokens there."""
    rows, end_directions = [], []
    for T, x, positions in zip(maps, points, shared_positions, strict=True):
        shared_map = hold_others_fixed(T, x, positions)
        map_values = fixed_point_values(
            shared_map, x[positions], included_indices, times, iterations, torch.Generator().manual_seed(seed)
        )
        rows.append({name: map_values[name] for name in MAP_FIELDS})
        end_directions.append(directions(orbit(shared_map, x[positions], times)[[0, -1]]))
    turn_angles = torch.stack([angles(text_directions, end_directions[0]) for text_directions in end_directions])
    tables = {name: torch.stack([row[name] for row in rows]) for name in MAP_FIELDS}
    for end_index, name in enumerate(("change", "settled")):
        tables[f"{name}_token"] = turn_angles[:, end_index]
        tables[name] = turn_angles[:, end_index, included_indices].mean(-1)
        tables[f"{name}_null"] = _mean_pairwise_angle(end_directions[0][end_index, included_indices])
    return tables


def hold_others_fixed(T: Map, x: Float[Tensor, "all d"], positions: Positions) -> Map:
    """T of the tokens at some places alone, all others held where they are."""
    return lambda shared_points: T(x.index_copy(0, positions, shared_points))[positions]


def _mean_pairwise_angle(directions: Cloud) -> Float[Tensor, ""]:
    """Mean angle between two different tokens; NaN for one."""
    first, second = torch.triu_indices(len(directions), len(directions), 1, device=directions.device)
    return angles(directions[first], directions[second]).mean()


def _values(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Layers side by side, behind the texts where there are texts."""
    fields = BOUNDARY.fields
    return {name: torch.stack([row[name] for row in rows], fields[name].dims.index("layer")) for name in rows[0]}


def _coords(
    traces: Sequence[Trace], layers: list[int], shared_positions: list[Positions], n_before: int, times: int
) -> dict[str, Any]:
    boundary_texts = [
        "".join(t.tokens[n_before : len(t) - len(positions) + n_before])
        for t, positions in zip(traces, shared_positions, strict=True)
    ]
    return {
        "text": range(len(traces)),
        "boundary": ("text", [boundary_text.strip() for boundary_text in boundary_texts]),
        "layer": layers,
        "token": shared_positions[0].tolist(),
        "after": ("token", [index >= n_before for index in range(len(shared_positions[0]))]),
        "time": range(1, times + 1),
    }


TEXT_DIMS = ("text", "layer")
BOUNDARY = Analysis(
    name="boundary",
    question="After other first words, are the same tokens read elsewhere, and would they settle elsewhere?",
    ask=boundary,
    needs="model",
    fields={
        "change": Field(
            TEXT_DIMS,
            "mean of change_token over the shared tokens after the boundary that are massive in no text",
            "radians",
            null="change_null",
        ),
        "change_token": Field(
            (*TEXT_DIMS, "token"),
            "angle between the directions x/‖x‖ of a shared token as the layer reads it in this text and in the first one",
            "radians",
        ),
        "change_null": Field(
            ("layer",),
            "mean angle between two different ones of these tokens in the first text: how far tokens lie apart anyway",
            "radians",
        ),
        "settled": Field(
            TEXT_DIMS,
            "mean of settled_token over the shared tokens after the boundary that are massive in no text",
            "radians",
            null="settled_null",
        ),
        "settled_token": Field(
            (*TEXT_DIMS, "token"),
            "as change_token, after the layer was applied `times` times to the shared tokens, the boundary held where it is",
            "radians",
        ),
        "settled_null": Field(
            ("layer",),
            "mean angle between two different ones of these tokens in the first text, after the same",
            "radians",
        ),
        "residual": Field(
            TEXT_DIMS, "‖T(X) − X‖/‖X‖ of the shared tokens after the boundary, X as the layer reads them in this text"
        ),
        "settling": Field(
            (*TEXT_DIMS, "time"),
            "mean angle by which their directions still turn at each application, the boundary held",
            "radians",
        ),
        "jacobian_norm": Field(
            TEXT_DIMS,
            "largest singular value of ∂T/∂X between shared tokens, the boundary held, by Lanczos",
        ),
        "jacobian_norm_error": Field(
            TEXT_DIMS,
            "a singular value lies so near to jacobian_norm: from the residual of the iteration",
            basis_dependent=True,
        ),
        "jacobian_radius": Field(
            TEXT_DIMS,
            "largest |eigenvalue| of the same, by Arnoldi: below 1 the layer is locally contracting here, the boundary held",
        ),
        "jacobian_radius_error": Field(
            TEXT_DIMS,
            "how far off jacobian_radius may be, on either side, to first order: residual of Arnoldi's vector times the condition number",
            basis_dependent=True,
        ),
    },
)
