"""How close a layer is to a fixed point: its residual, repeated application and the norm of its Jacobian."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.covers.fixed_point.jacobian import jacobian_values, prompt_dependence
from rheoscope.covers.fixed_point.layer_map import Cloud, LayerMap, Map, layer_map
from rheoscope.covers.layer_inputs import (
    check_control,
    describe_model,
    included_positions,
    provenance,
    resolve_layer,
)
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.model import Model, check_same_weights
from rheoscope.space.report_run import ReportRun
from rheoscope.space.results import Results
from rheoscope.space.settings import Bounds, Draws, LayerIndex, Seed, Tolerance
from rheoscope.space.trace import Trace
from rheoscope.space.view import View
from rheoscope.statistics.nulls import p_values, random_permutations

if TYPE_CHECKING:
    import xarray

CONTROL_FIELDS = (
    "residual",
    "repeated_rotation_angle",
    "rotation_angle",
    "rotation_angle_null",
    "jacobian_norm",
    "jacobian_radius",
    "boundary",
)
"""The fields that are also computed for the untrained control."""
ANGLE_SUFFIXES = ("", "_null", "_null_sd")
"""The angle, and the mean and standard deviation of its null."""


@torch.no_grad()
def fixed_point(
    model: Model,
    trace: Trace,
    layers: Sequence[LayerIndex] | None = None,
    applications: Annotated[int, Bounds(1, 10_000)] = 8,
    iterations: Annotated[int, Bounds(0, 10_000)] = 200,
    tolerance: Tolerance = 0.01,
    draws: Draws = 200,
    seed: Seed = 0,
    keep_massive: bool = False,
    control: Trace | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """How close each layer, as a map T of clouds, is to a fixed point.

    **Question** Does this layer leave the cloud nearly in place? Do directions converge under repeated application? Does
    the layer amplify small changes, and how much does a token depend on its prompt?

    **Formula** T(X) = X + attention + MLP on the cloud that the layer reads. Under repeated application, directions x/‖x‖
    are compared, because pre-norm streams grow without bound. The norm of ∂T/∂X comes from Lanczos steps on JᵀJ. A causal
    Jacobian is block triangular, so its radius is the largest over its diagonal blocks, one per token. In a bidirectional
    model, or where the blocks are too large, the radius comes from Arnoldi steps. A radius below 1 means that the layer
    contracts locally at this cloud.

    **Symmetries** The radius leaves out directions along which the norm makes the answer trivial. Under LayerNorm, adding a
    constant to a token adds the same constant to its image: an eigenvalue of exactly 1. Under every norm, rescaling a token
    leaves what the layer reads unchanged: an eigenvalue close to 1 along each token. Both are projected out on both sides.

    **Null** The displacements of the layer are permuted among the tokens. The angle from x_i to x_i + Δ_π(i) replaces the
    angle from x_i to x_i + Δ_i. Mean and standard deviation are exact over all permutations.

    **Control** The same text in the same architecture at initial weights:
    `control=rs.load(…, untrained=True).trace(text)`.

    **Settings** `layers=None` means all layers. `applications` is how often the layer is applied. Iterations and
    probes end when the error is at most `tolerance`, relative for norm and radius, after `iterations` steps at the latest.
    Below 20 iterations the radius of a causal layer is iterated, not exact. `iterations=0` omits the Jacobian and `boundary`.
    `draws` permutations, shared by all layers, give the p-value of the mean over layers.

    **Returns** (layer): `residual`, `rotation_angle`, `jacobian_norm`, `jacobian_radius` and `boundary`. (layer, token):
    `residual_token`. (layer, application): `repeated_rotation_angle`. Angles have nulls. Norm, radius and
    `boundary` have errors. (draw, layer): `rotation_angle_null_draws`, with the scalar `rotation_angle_p_value`. With a control also
    `residual_untrained` and others. Post-norm layers are refused.

    **Laws** T equals the model's own layer, which every call checks. The radius is at most the norm. Both equal those of
    the dense Jacobian up to their errors. If all displacements are equal, the null equals the angle.

    **See also** `trajectory` measures the displacement of every token. `boundary` compares the same tokens after different
    prefixes.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> result = rs.fixed_point(model, model.trace("The keys to the cabinet"), layers=[0], iterations=5)
    >>> bool((result.jacobian_radius <= result.jacobian_norm).all())
    True
    """
    check_same_weights(model, trace)
    layer_indices = select_layers(trace.view, layers, applications)
    positions = included_positions(trace, keep_massive)
    if control is not None:
        check_control(trace, control)
    traces, rows = [trace] if control is None else [trace, control], []
    for current_trace in traces:
        settings = applications, iterations, tolerance, torch.Generator().manual_seed(seed)
        current_positions = included_positions(current_trace, keep_massive)
        for layer in layer_indices:
            rows.append(layer_values(current_trace, layer, current_positions, *settings))
            if progress is not None:
                progress(len(rows), len(layer_indices) * len(traces))
    values = with_control(_stack_layers(rows[: len(layer_indices)]), _stack_layers(rows[len(layer_indices) :]))
    angle_tables = values.pop("displacement_angles")
    values |= (
        permutation_null(values["rotation_angle"], angle_tables, random_permutations(len(positions), draws, seed))
        if draws
        else {}
    )
    token_texts = [trace.tokens[position] for position in positions.tolist()]
    coords = {
        "layer": layer_indices,
        "token": positions.tolist(),
        "token_text": ("token", token_texts),
        "application": range(1, applications + 1),
    }
    attributes = provenance(
        trace,
        keep_massive,
        applications=applications,
        iterations=iterations,
        tolerance=tolerance,
        draws=draws,
        seed=seed,
    )
    attributes |= {"space": "raw"} | ({} if control is None else {"control": describe_model(control)})
    return FIXED_POINT.label(values, coords, attributes)


def layer_values(
    trace: Trace,
    layer: int,
    positions: Tensor,
    applications: int,
    iterations: int,
    tolerance: float,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """All fields of one layer of a text."""
    T, x = layer_map(trace, layer), trace.layer_input(layer)
    dependence = prompt_dependence(T, x, tolerance, generator) if iterations else {}
    return kernel(T, x, positions, applications, iterations, tolerance, generator) | dependence


def _stack_layers(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]} if rows else {}


def with_control(values: dict[str, Tensor], control_values: dict[str, Tensor]) -> dict[str, Tensor]:
    """The fields of a model, and those of its control with the suffix `_untrained`."""
    return values | {f"{name}_untrained": control_values[name] for name in CONTROL_FIELDS if name in control_values}


def permutation_null(
    mean_angles: Float[Tensor, " layer"], angle_tables: Float[Tensor, "layer n n"], orders: Int[Tensor, "draw n"]
) -> dict[str, Tensor]:
    """The mean angle under every permutation, and the p-value of the mean over layers."""
    token_indices = torch.arange(angle_tables.shape[-1], device=angle_tables.device)
    null_angles = angle_tables[:, token_indices, orders.to(angle_tables.device)].mean(-1).mT
    return {
        "rotation_angle_null_draws": null_angles,
        "rotation_angle_p_value": p_values(mean_angles.mean(), null_angles.mean(-1)),
    }


def select_layers(view: View, layers: Sequence[int] | None, applications: int) -> list[int]:
    """The requested layers, by default all, after a check of the settings."""
    layer_indices = list(range(view.layers)) if layers is None else [resolve_layer(view, layer) for layer in layers]
    if not layer_indices:
        raise RheoscopeError(Message("layers must name at least one layer, got none"), use(layers=[0]))
    if applications < 1:
        raise RheoscopeError(
            Message("applications must be at least 1, got {value}", value=applications), use(applications=8)
        )
    return layer_indices


def kernel(
    T: LayerMap,
    x: Cloud,
    positions: Tensor,
    applications: int,
    iterations: int,
    tolerance: float,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """All fields of one map at one cloud. The table `displacement_angles` serves the permutation null."""
    iterates = orbit(T, x, applications)
    displacement, points = (iterates[1] - iterates[0])[positions], iterates[0][positions]
    lengths = points.norm(dim=-1)
    values = {
        "residual": displacement.norm() / points.norm(),
        "residual_token": displacement.norm(dim=-1) / torch.where(lengths > 0, lengths, 1),
        "repeated_rotation_angle": repeated_rotation_angles(iterates, positions),
        "displacement_angles": displacement_angles(points, displacement),
    }
    values["repeated_rotation_angle_null"], values["repeated_rotation_angle_null_sd"] = torch.stack(
        [permutation_moments(displacement_angles(a[positions], (b - a)[positions])) for a, b in pairwise(iterates)], -1
    )
    values |= {f"rotation_angle{suffix}": values[f"repeated_rotation_angle{suffix}"][0] for suffix in ANGLE_SUFFIXES}
    return values | (jacobian_values(T, x, iterations, tolerance, generator) if iterations else {})


def orbit(T: Map, x: Cloud, applications: int) -> Float[Tensor, "applications1 n d"]:
    """A cloud and its images after every application of T; NaN once a point is no longer finite."""
    iterates = [x.double()]
    for _ in range(applications):
        x = T(x)
        x = x if bool(x.isfinite().all()) else torch.full_like(x, float("nan"))
        iterates.append(x.double())
    return torch.stack(iterates)


def repeated_rotation_angles(
    orbit: Float[Tensor, "applications1 n d"], positions: Tensor
) -> Float[Tensor, " application"]:
    """The mean angle by which every application rotates the directions."""
    unit_iterates = directions(orbit)
    return angles(unit_iterates[1:], unit_iterates[:-1])[:, positions].mean(-1)


def displacement_angles(x: Cloud, displacement: Cloud) -> Float[Tensor, "n n"]:
    """The angle by which token i rotates if it is displaced like token j."""
    radial = displacement @ directions(x).mT  # Δ_j along the direction of x_i
    tangential = (displacement.square().sum(-1, keepdim=True) - radial.square()).clamp(min=0).sqrt()
    return torch.atan2(tangential, x.norm(dim=-1) + radial).mT


def permutation_moments(table: Float[Tensor, "n n"]) -> Float[Tensor, "2"]:
    """Mean and standard deviation of the mean of table[i, π(i)] over all permutations π (Hoeffding 1951)."""
    n, mean = len(table), table.mean()
    residual = table - table.mean(0) - table.mean(1, keepdim=True) + mean
    return torch.stack([mean, (residual.square().sum() / (n - 1) if n > 1 else mean * torch.nan).sqrt() / n])


def angles(a: Float[Tensor, "*t n d"], b: Float[Tensor, "*t n d"]) -> Float[Tensor, "*t n"]:
    """Angles between unit vectors, accurate also near 0."""
    return 2 * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1))


def directions(x: Float[Tensor, "*t n d"]) -> Float[Tensor, "*t n d"]:
    """x/‖x‖."""
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-300)


def _control_fields(fields: dict[str, Field]) -> dict[str, Field]:
    """The fields of the control."""
    return {
        f"{name}_untrained": replace(
            fields[name],
            definition=Message("{field} of the same text in the same architecture at initial weights", field=name),
            null="",
            null_sd="",
        )
        for name in CONTROL_FIELDS
    }


LAYER_DIMS = ("layer",)
FIELDS = {
    "residual": Field(
        LAYER_DIMS, "‖T(X) − X‖/‖X‖ of the layer map T on the tokens that are not massive; 0 at a fixed point"
    ),
    "residual_token": Field(("layer", "token"), "‖T(x) − x‖/‖x‖ of every token"),
    "rotation_angle": Field(
        LAYER_DIMS,
        "mean angle by which the layer rotates the directions x/‖x‖ of the tokens",
        "radians",
        null="rotation_angle_null",
        null_sd="rotation_angle_null_sd",
    ),
    "rotation_angle_null": Field(
        LAYER_DIMS,
        "mean of rotation_angle over all permutations of the displacements T(x) − x among the tokens",
        "radians",
    ),
    "rotation_angle_null_sd": Field(
        LAYER_DIMS, "standard deviation of rotation_angle over all permutations of the displacements", "radians"
    ),
    "rotation_angle_null_draws": Field(
        ("draw", "layer"),
        "rotation_angle under random permutations of the displacements, each shared by all layers",
        "radians",
    ),
    "rotation_angle_p_value": Field(
        (),
        "two-sided p-value of the mean of rotation_angle over layers under permuted displacements",
    ),
    "repeated_rotation_angle": Field(
        ("layer", "application"),
        "mean angle by which each application of the layer rotates the directions x/‖x‖",
        "radians",
        null="repeated_rotation_angle_null",
        null_sd="repeated_rotation_angle_null_sd",
    ),
    "repeated_rotation_angle_null": Field(
        ("layer", "application"),
        "mean of repeated_rotation_angle over all permutations of the displacements of that application",
        "radians",
    ),
    "repeated_rotation_angle_null_sd": Field(
        ("layer", "application"),
        "standard deviation of repeated_rotation_angle over all permutations of the displacements",
        "radians",
    ),
    "jacobian_norm": Field(
        LAYER_DIMS,
        "largest singular value of ∂T/∂X over all tokens, by Lanczos: the largest growth of a small change",
    ),
    "jacobian_norm_error": Field(
        LAYER_DIMS,
        "bound on the distance from jacobian_norm to a singular value, from the residual of the iteration",
        basis_dependent=True,
    ),
    "jacobian_radius": Field(
        LAYER_DIMS,
        "largest |eigenvalue| of ∂T/∂X, without the directions that the norm preserves; below 1 the layer contracts locally",
    ),
    "jacobian_radius_error": Field(
        LAYER_DIMS,
        "error of jacobian_radius: for a causal layer the bound of the tokens left out, else the Arnoldi residual times the "
        "condition number",
        basis_dependent=True,
    ),
    "boundary": Field(
        LAYER_DIMS,
        "share of the squared Jacobian of the last token's output that belongs to other tokens, by random probes",
        basis_dependent=True,
    ),
    "boundary_error": Field(
        LAYER_DIMS,
        "standard error of boundary over the random probes; 0 with as many probes as coordinates, which are exact",
        basis_dependent=True,
    ),
}


def _report_settings(results: Results) -> dict[str, Any]:
    """The last layer only, since each layer costs many passes."""
    return {"tolerance": 0.05, "applications": 1, "layers": [results.view.layers - 1]}


FIXED_POINT = Analysis(
    name="fixed_point",
    question="Does a layer leave the tokens nearly in place, and do they converge under repeated application?",
    ask=fixed_point,
    needs="model",
    see_also=("trajectory",),
    report_runs=(ReportRun("covers", 9, for_files=True),),
    report=_report_settings,
    long_text={"iterations": 16, "tolerance": 0.1},
    fields=FIELDS | _control_fields(FIELDS),
)
