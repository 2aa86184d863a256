"""The prompt as a boundary condition: the same tokens after different prefixes, under repeated layer maps."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.covers.fixed_point.analysis import angles, directions, orbit, select_layers
from rheoscope.covers.fixed_point.analysis import kernel as fixed_point_values
from rheoscope.covers.fixed_point.layer_map import Cloud, LayerMap, Map, layer_map
from rheoscope.covers.layer_inputs import provenance
from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message, join
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.model import Model, as_text_list
from rheoscope.space.settings import Bounds, LayerIndex, Seed, Tolerance
from rheoscope.space.trace import Trace
from rheoscope.statistics.nulls import random_permutations

if TYPE_CHECKING:
    import xarray

TextPoints = Float[Tensor, "_ d"]
"""The cloud of one text. Texts may differ in length."""
Positions = Int[Tensor, " n"]
IncludedIndices = Int[Tensor, " k"]
JACOBIAN_FIELDS = ("jacobian_norm", "jacobian_norm_error", "jacobian_radius", "jacobian_radius_error")
MAP_FIELDS = ("residual", "repeated_rotation_angle", *JACOBIAN_FIELDS)
MAX_ORDERS_TRIED = 64
"""The number of random orders that are tried to find two that differ from the text."""


@torch.no_grad()
def boundary(
    model: Model,
    texts: Any,
    layers: Sequence[LayerIndex] | None = None,
    applications: Annotated[int, Bounds(1, 10_000)] = 8,
    iterations: Annotated[int, Bounds(0, 10_000)] = 200,
    tolerance: Tolerance = 0.01,
    seed: Seed = 0,
    keep_massive: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """How strongly the fixed points of a layer depend on the prefix of a text.

    **Question** After a different prefix, do the same tokens enter the layer elsewhere, and would they converge
    elsewhere? Does the layer amplify changes more?

    **Formula** The tokens that all texts begin or end with are shared. The tokens between them are the boundary.
    T(X) = X + attention + MLP is the map of the layer. The shared tokens follow X ← T(X), and the boundary stays fixed at
    the layer's input. Directions x/‖x‖ are compared with those of the first text, before and after `applications` steps.

    **Settings** `texts` are two or more strings or lists of token ids that end in the same token. For a single text, two
    others are made: they permute the tokens of its first half, except the very first token. `layers=None` means all layers.
    Norm and radius are iterated until the relative error is at most `tolerance`, for at most `iterations` steps; 0 omits them.

    **Returns** (text, layer): `input_angle`, `final_angle`, `residual`, `jacobian_norm` and `jacobian_radius` with their
    errors. (text, layer, token): `input_angle_token`, `final_angle_token`. (text, layer, application):
    `repeated_rotation_angle`. (layer): `input_angle_null`, `final_angle_null`. The coordinate `boundary` holds the tokens
    that differ. `token` is a position in the first text. `after_boundary` is true for shared tokens after the boundary.

    **Laws** Equal boundaries give angle 0 and equal values. In a causal model, tokens before the boundary are
    bit-identical. Norm and radius are those of the dense Jacobian between shared tokens, as in `fixed_point`.
    Exchanging two texts leaves the angles between them unchanged.

    **See also** `fixed_point` analyses one text in which all tokens are free.

    >>> import rheoscope as rs
    >>> texts = ["The keys to the cabinet are on the table", "A dog and the cabinet are on the table"]
    >>> result = rs.boundary(rs.load(), texts, layers=[2], iterations=3)
    >>> result.boundary.values.tolist(), bool((result.input_angle[0] == 0).all() and (result.input_angle[1] > 0).all())
    (['The keys to', 'A dog and'], True)
    """
    layer_indices = select_layers(model.view, layers, applications)
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
                applications,
                iterations,
                tolerance,
                seed,
            )
        )
        if progress is not None:
            progress(len(rows), len(layer_indices))
    settings = {
        "iterations": iterations,
        "tolerance": tolerance,
        "applications": applications,
        "seed": seed,
        "massive": [t.massive_tokens() for t in traces],
    }
    settings |= {"texts": [trace.text or "".join(trace.tokens) for trace in traces]}
    attributes = provenance(traces[0], keep_massive, space="raw") | settings
    return BOUNDARY.label(
        _values(rows), _coords(traces, layer_indices, shared_positions, n_before, applications), attributes
    )


def with_reorderings(ids: Int[Tensor, " n"], seed: int) -> list[Int[Tensor, " n"]]:
    """A text, and two copies with the tokens of its first half in other orders. The very first token stays in place.

    >>> [ids.tolist()[3:] for ids in with_reorderings(torch.tensor([5, 6, 7, 8]), seed=0)]
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
            Message("the first half of this text of {n} tokens has no other order; use a longer text", n=len(ids)),
            Advice("rs.boundary(model, [text, other_text])"),
        )
    return [ids, *distinct_reorderings[:2]]


def find_shared_tokens(traces: Sequence[Trace]) -> tuple[list[Positions], int]:
    """The positions of the shared tokens in each text, and how many of them precede the boundary."""
    ids = [trace.ids.tolist() for trace in traces]
    n_common_end = _common_prefix_length([text_ids[::-1] for text_ids in ids])
    if not n_common_end:
        raise RheoscopeError(
            Message(
                "the texts must end in the same token, got {tokens}",
                tokens=join(", ", [repr(trace.tokens[-1]) for trace in traces]),
            ),
            Advice('texts=["The keys are here", "A dog is here"]'),
        )
    n_common_start = min(_common_prefix_length(ids), min(map(len, ids)) - n_common_end)
    device = traces[0].points.device
    return [
        torch.tensor([*range(n_common_start), *range(len(text_ids) - n_common_end, len(text_ids))], device=device)
        for text_ids in ids
    ], n_common_start


def _common_prefix_length(sequences: list[list[int]]) -> int:
    """The number of leading entries that all sequences have in common."""
    return len(list(takewhile(lambda column: len(set(column)) == 1, zip(*sequences, strict=False))))


def _included_tokens(
    traces: Sequence[Trace], shared_positions: list[Positions], n_before: int, keep_massive: bool
) -> IncludedIndices:
    """The shared tokens that enter the means: those after the boundary that are massive in no text."""
    is_included = torch.stack(
        [trace.valid_mask(keep_massive)[positions] for trace, positions in zip(traces, shared_positions, strict=True)]
    ).all(0)
    is_included[:n_before] = False
    if not bool(is_included.any()):
        raise RheoscopeError(
            Message("every token after the boundary is massive in one of the texts"), use(keep_massive=True)
        )
    return is_included.nonzero()[:, 0]


def kernel(
    maps: Sequence[LayerMap],
    points: Sequence[TextPoints],
    shared_positions: Sequence[Positions],
    included_indices: IncludedIndices,
    applications: int,
    iterations: int,
    tolerance: float,
    seed: int,
) -> dict[str, Tensor]:
    """All values of one layer, with one row per text.

    Each text has its map, the points that the layer reads, and the positions of the shared tokens.
    """
    rows, end_directions = [], []
    for T, x, positions in zip(maps, points, shared_positions, strict=True):
        shared_map = replace(
            T,
            apply=hold_others_fixed(T.apply, x, positions),
            own=None if T.own is None else hold_others_fixed(T.own, x, positions),
        )
        generator = torch.Generator().manual_seed(seed)
        map_values = fixed_point_values(
            shared_map, x[positions], included_indices, applications, iterations, tolerance, generator
        )
        rows.append({name: map_values[name] for name in MAP_FIELDS if name in map_values})
        end_directions.append(directions(orbit(shared_map, x[positions], applications)[[0, -1]]))
    text_angles = torch.stack([angles(text_directions, end_directions[0]) for text_directions in end_directions])
    tables = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    for end_index, name in enumerate(("input_angle", "final_angle")):
        tables[f"{name}_token"] = text_angles[:, end_index]
        tables[name] = text_angles[:, end_index, included_indices].mean(-1)
        tables[f"{name}_null"] = _mean_pairwise_angle(end_directions[0][end_index, included_indices])
    return tables


def hold_others_fixed(T: Map, x: Float[Tensor, "all d"], positions: Positions) -> Map:
    """T as a map of the tokens at some positions, of one cloud or of several, with all other tokens held fixed."""

    def shared_map(shared_points: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
        clouds = x.expand(*shared_points.shape[:-2], *x.shape)
        return T(clouds.index_copy(-2, positions, shared_points))[..., positions, :]

    return shared_map


def _mean_pairwise_angle(directions: Cloud) -> Float[Tensor, ""]:
    """Mean angle between two different tokens; NaN for a single token."""
    first, second = torch.triu_indices(len(directions), len(directions), 1, device=directions.device)
    return angles(directions[first], directions[second]).mean()


def _values(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Stack the layers along the declared axis."""
    fields = BOUNDARY.fields
    return {name: torch.stack([row[name] for row in rows], fields[name].dims.index("layer")) for name in rows[0]}


def _coords(
    traces: Sequence[Trace], layers: list[int], shared_positions: list[Positions], n_before: int, applications: int
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
        "after_boundary": ("token", [index >= n_before for index in range(len(shared_positions[0]))]),
        "application": range(1, applications + 1),
    }


TEXT_DIMS = ("text", "layer")
BOUNDARY = Analysis(
    name="boundary",
    question="After a different prefix, do the same tokens enter a layer elsewhere and converge elsewhere?",
    ask=boundary,
    needs="model",
    fields={
        "input_angle": Field(
            TEXT_DIMS,
            "mean of input_angle_token over the shared tokens after the boundary",
            "radians",
            null="input_angle_null",
        ),
        "input_angle_token": Field(
            (*TEXT_DIMS, "token"),
            "angle between the directions x/‖x‖ of a shared token at the layer's input, in this text and in the first",
            "radians",
        ),
        "input_angle_null": Field(
            ("layer",),
            "mean angle between two different shared tokens of the first text at the layer's input",
            "radians",
        ),
        "final_angle": Field(
            TEXT_DIMS,
            "mean of final_angle_token over the shared tokens after the boundary",
            "radians",
            null="final_angle_null",
        ),
        "final_angle_token": Field(
            (*TEXT_DIMS, "token"),
            "as input_angle_token, after repeated application of the layer to the shared tokens with the boundary held fixed",
            "radians",
        ),
        "final_angle_null": Field(
            ("layer",),
            "mean angle between two different shared tokens of the first text after repeated application of the layer",
            "radians",
        ),
        "residual": Field(TEXT_DIMS, "‖T(X) − X‖/‖X‖ of the shared tokens after the boundary at the layer's input"),
        "repeated_rotation_angle": Field(
            (*TEXT_DIMS, "application"),
            "mean angle by which each application rotates the directions of the shared tokens, with the boundary held fixed",
            "radians",
        ),
        "jacobian_norm": Field(
            TEXT_DIMS,
            "largest singular value of ∂T/∂X between shared tokens, with the boundary held fixed, by Lanczos",
        ),
        "jacobian_norm_error": Field(
            TEXT_DIMS,
            "bound on the distance from jacobian_norm to a singular value, from the residual of the iteration",
            basis_dependent=True,
        ),
        "jacobian_radius": Field(
            TEXT_DIMS,
            "largest |eigenvalue| of ∂T/∂X between shared tokens, without the directions that the norm preserves; below 1 the "
            "layer contracts locally",
        ),
        "jacobian_radius_error": Field(
            TEXT_DIMS,
            "error of jacobian_radius: for a causal layer the bound of the tokens left out, else the Arnoldi residual times the "
            "condition number",
            basis_dependent=True,
        ),
    },
)
