"""Is a layer near a fixed point? How far it moves the cloud, what it does when applied again and again, its Jacobian."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import TYPE_CHECKING, Annotated, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.definition import reference_attention
from rheoscope.covers.layer_inputs import check_control, describe_model, included_positions, provenance
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.autograd_pullback import pullback_by_autograd
from rheoscope.space.model import Model, check_same_weights
from rheoscope.space.report_run import ReportRun
from rheoscope.space.results import Results
from rheoscope.space.settings import Bounds, Draws, LayerIndex, Seed
from rheoscope.space.trace import Trace
from rheoscope.space.view import View
from rheoscope.statistics.nulls import p_values, random_permutations

if TYPE_CHECKING:
    import xarray

Cloud = Float[Tensor, "n d"]
Map = Callable[[Tensor], Tensor]


ROUNDING = 1e-6
"""Of products with a Jacobian: models compute norms and rotations in float32, whatever their dtype."""
CONTROL_FIELDS = ("residual", "settling", "turn", "turn_null", "jacobian_norm", "jacobian_radius", "boundary")
"""What stands beside the untrained control."""
NULL_FIELDS = ("settling", "settling_null", "settling_null_sd")
"""Of the first application they are the turn and its null."""


@torch.no_grad()
def fixed_point(
    model: Model,
    trace: Trace,
    layers: Sequence[LayerIndex] | None = None,
    times: Annotated[int, Bounds(1, 10_000)] = 8,
    iterations: Annotated[int, Bounds(0, 10_000)] = 20,
    draws: Draws = 200,
    seed: Seed = 0,
    keep_massive: bool = False,
    control: Trace | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """How each layer, as a map T of clouds, stands to its fixed points.

    **Answers** "does this layer leave the cloud nearly in place, does it settle when applied again, does it amplify small
    changes, how much does a token hang on its prompt?"

    **Formula** T(X) = X + attention + MLP, on the cloud that the layer reads. Applied k times, directions x/‖x‖ are compared
    (pre-norm streams grow without bound, the direction may settle). Norm and radius of ∂T/∂X at the cloud come from
    products with vectors alone: `iterations` steps of Arnoldi, which may end on either side, and half as many of power iteration
    on JᵀJ, all its vectors kept (Lanczos; from below, but for rounding): each takes two products. Both state their error;
    `iterations=0` leaves both out, and `boundary`. A
    radius below 1 says that the layer is locally contracting here, no more.

    **Null** the displacements of the layer permuted among the tokens: ‖T(X) − X‖ stays as it is, so directions are compared, the
    angle from x_i to x_i + Δ_π(i) with the angle from x_i to x_i + Δ_i. Mean and spread are those over all permutations, exactly;
    `draws` of them, the same for all layers, give the p-value of the mean over layers (0 leaves it out).

    **Control** what training made of it: `control=rs.load(…, untrained=True).trace(text)`, the same text in the same
    architecture at initial weights.

    **Gives** (layer): `residual`, `turn`, `jacobian_norm`, `jacobian_radius`, `boundary`; (layer, token): `residual_token`;
    (layer, time): `settling`; nulls and errors beside them; (draw, layer): `turn_draws`; `turn_p`; with a control
    `residual_untrained`, … `layers` picks some. Blocks whose norms follow their sums are refused.

    **Laws** T of the View is the model's own (checked on every call); radius ≤ norm; equal to the dense Jacobian's on small
    sizes, and about as far from it as the errors say; a causal Jacobian is block triangular, its radius the largest over its
    diagonal blocks; where all displacements are equal, the null is the number.

    **Siblings** `trajectory` has the same displacements token by token; `boundary` compares the same tokens after other ones.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> found = rs.fixed_point(model, model.trace("The keys to the cabinet"), layers=[0], iterations=5)
    >>> bool((found.jacobian_radius <= found.jacobian_norm).all())
    True
    """
    check_same_weights(model, trace)
    layer_indices = select_layers(trace.view, layers, times, iterations, 0)
    positions = included_positions(trace, keep_massive)
    if control is not None:
        check_control(trace, control)
    traces = [trace] if control is None else [trace, control]
    rows: list[dict[str, Tensor]] = []
    for current_trace in traces:
        generator = torch.Generator().manual_seed(seed)
        trace_positions = included_positions(current_trace, keep_massive)
        for layer in layer_indices:
            on_product = _product_counter(
                progress, 2 * iterations * len(rows), 2 * iterations * len(layer_indices) * len(traces)
            )
            rows.append(
                kernel(
                    layer_map(current_trace, layer),
                    current_trace.layer_input(layer),
                    trace_positions,
                    times,
                    iterations,
                    generator,
                    on_product,
                )
            )
    values = with_control(_stack_layers(rows[: len(layer_indices)]), _stack_layers(rows[len(layer_indices) :]))
    turn_tables = values.pop("turns")
    values |= (
        permutation_null(values["turn"], turn_tables, random_permutations(len(positions), draws, seed)) if draws else {}
    )
    token_texts = [trace.tokens[position] for position in positions.tolist()]
    coords = {
        "layer": layer_indices,
        "token": positions.tolist(),
        "token_text": ("token", token_texts),
        "time": range(1, times + 1),
    }
    settings = {"times": times, "iterations": iterations, "draws": draws, "seed": seed, "space": "raw"}
    settings |= {} if control is None else {"control": describe_model(control)}
    return FIXED_POINT.label(values, coords, provenance(trace, keep_massive) | settings)


def _product_counter(progress: Callable[[int, int], None] | None, n_done: int, total: int) -> Callable[[], None]:
    """Called once for every product with a Jacobian: so much of all of them is done."""
    counter = count(n_done + 1)
    return lambda: None if progress is None else progress(min(next(counter), total), total)


def _stack_layers(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]} if rows else {}


def with_control(values: dict[str, Tensor], control_values: dict[str, Tensor]) -> dict[str, Tensor]:
    """The numbers of a model, and those of its control under their own names."""
    return values | {f"{name}_untrained": control_values[name] for name in CONTROL_FIELDS if name in control_values}


def permutation_null(
    mean_turns: Float[Tensor, " layer"], turn_tables: Float[Tensor, "layer n n"], orders: Int[Tensor, "draw n"]
) -> dict[str, Tensor]:
    """The mean turn under every order, the same in all layers, and how often the mean over layers lies as far off."""
    token_indices = torch.arange(turn_tables.shape[-1], device=turn_tables.device)
    null_turns = turn_tables[:, token_indices, orders.to(turn_tables.device)].mean(-1).mT
    return {"turn_draws": null_turns, "turn_p": p_values(mean_turns.mean(), null_turns.mean(-1))}


def select_layers(
    view: View, layers: Sequence[int] | None, times: int, iterations: int, min_iterations: int = 1
) -> list[int]:
    """Some layers, or all; no layer, time or iteration is nothing to look at."""
    layer_indices = list(range(view.layers)) if layers is None else list(layers)
    if not layer_indices or times < 1 or iterations < min_iterations:
        raise RheoscopeError(
            f"one layer, one time and one iteration or more, got layers={layer_indices}, times={times}, "
            f"iterations={iterations}; type layers=[0], times=8, iterations=20"
        )
    return layer_indices


def layer_map(trace: Trace, layer: int) -> Map:
    """The map T of a layer, from its heads and its MLP; refused where it is not the model's own."""
    heads, mlp = trace.view.heads_of(layer), trace.view.mlps[layer]
    W_O, b_O = heads.W_O.detach(), None if heads.b_O is None else heads.b_O.detach()  # a function of the cloud alone
    is_parallel = trace.steps[trace.mid_steps[layer]] in trace.unread_steps

    def T(x: Cloud) -> Cloud:
        outputs = heads.apply_gate(reference_attention(heads.mechanism, *heads.qkv(x))[0][0].to(x.dtype), x)
        attention_update = (outputs @ W_O).sum(0)
        attention_update = attention_update if b_O is None else attention_update + b_O
        middle = x + (attention_update if heads.output_norm is None else heads.output_norm.apply(attention_update))
        return middle + mlp(x if is_parallel else middle)

    end_indices = [*trace.input_steps[1:], len(trace.steps) - 1]
    x, expected_points = trace.layer_input(layer), trace.points[end_indices[layer]]
    error = float((T(x) - expected_points).detach().norm() / expected_points.norm())
    if not error < (1e-3 if trace.view.dtype.itemsize >= 4 else 0.1):
        raise RheoscopeError(
            f"layer {layer} is no x + attention + MLP (off by {error:.1g}): its norms follow its sums, so its map is not in "
            "the View; type rs.trajectory(trace) for how far it moves the tokens"
        )
    return T


def kernel(
    T: Map,
    x: Cloud,
    positions: Tensor,
    times: int,
    iterations: int,
    generator: torch.Generator,
    on_product: Callable[[], None] = lambda: None,
) -> dict[str, Tensor]:
    """All numbers of one map at one cloud; `turns` is the table that its null is drawn from. `hear` is called at every product."""
    iterates = orbit(T, x, times)
    displacement, points = (iterates[1] - iterates[0])[positions], iterates[0][positions]
    lengths = points.norm(dim=-1)
    values = {
        "residual": displacement.norm() / points.norm(),
        "residual_token": displacement.norm(dim=-1) / torch.where(lengths > 0, lengths, 1),
        "settling": settling_angles(iterates, positions),
        "turns": turn_angles(points, displacement),
    }
    values["settling_null"], values["settling_null_sd"] = torch.stack(
        [permutation_moments(turn_angles(a[positions], (b - a)[positions])) for a, b in pairwise(iterates)], -1
    )
    values |= {name.replace("settling", "turn"): values[name][0] for name in NULL_FIELDS}
    return values | (jacobian_values(T, x, iterations, generator, on_product) if iterations else {})


def jacobian_values(
    T: Map, x: Cloud, iterations: int, generator: torch.Generator, on_product: Callable[[], None]
) -> dict[str, Tensor]:
    """Norm, radius and what other tokens do to a token, from products with the Jacobian alone."""
    start = torch.randn(x.shape, generator=generator).to(x)
    jvp, vjp = jacobian_products(T, x)

    def counted_vjp(w: Tensor) -> Tensor:
        on_product()
        return vjp(w)

    values = {"boundary": prompt_dependence(counted_vjp, x, generator)}
    values["jacobian_norm"], values["jacobian_norm_error"] = jacobian_norm(
        jvp, counted_vjp, start, math.ceil(iterations / 2)
    )
    values["jacobian_radius"], values["jacobian_radius_error"] = jacobian_radius(counted_vjp, start, iterations)
    return values


def orbit(T: Map, x: Cloud, times: int) -> Float[Tensor, "times1 n d"]:
    """A cloud, then after every application of T; NaN once a point is no longer finite."""
    iterates = [x.double()]
    for _ in range(times):
        x = T(x)
        x = x if bool(x.isfinite().all()) else torch.full_like(x, float("nan"))
        iterates.append(x.double())
    return torch.stack(iterates)


def settling_angles(orbit: Float[Tensor, "times1 n d"], positions: Tensor) -> Float[Tensor, " time"]:
    """How far directions turn at every further application, in the mean."""
    unit_iterates = directions(orbit)
    return angles(unit_iterates[1:], unit_iterates[:-1])[:, positions].mean(-1)


def turn_angles(x: Cloud, displacement: Cloud) -> Float[Tensor, "n n"]:
    """The angle by which token i turns when it gets the displacement of token j."""
    radial = displacement @ directions(x).mT  # Δ_j along the direction of x_i
    tangential = (displacement.square().sum(-1, keepdim=True) - radial.square()).clamp(min=0).sqrt()
    return torch.atan2(tangential, x.norm(dim=-1) + radial).mT


def permutation_moments(table: Float[Tensor, "n n"]) -> Float[Tensor, "2"]:
    """Mean and standard deviation of the mean of table[i, π(i)] over all permutations π: Hoeffding 1951."""
    n, mean = len(table), table.mean()
    residual = table - table.mean(0) - table.mean(1, keepdim=True) + mean
    return torch.stack([mean, (residual.square().sum() / (n - 1) if n > 1 else mean * torch.nan).sqrt() / n])


def angles(a: Float[Tensor, "*t n d"], b: Float[Tensor, "*t n d"]) -> Float[Tensor, "*t n"]:
    """Angles between unit vectors, exact near 0 too."""
    return 2 * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1))


def directions(x: Float[Tensor, "*t n d"]) -> Float[Tensor, "*t n d"]:
    """x/‖x‖."""
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-300)


def jacobian_products(T: Map, x: Cloud) -> tuple[Map, Map]:
    """v ↦ J v and w ↦ Jᵀ w at a cloud, both from one pass of T: J v is the gradient of Jᵀ w, which is linear, by w."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = T(x)
        w = torch.zeros_like(y, requires_grad=True)
        pullback = pullback_by_autograd(y, x, w, create_graph=True)
    return (
        lambda v: pullback_by_autograd(pullback, w, v, retain_graph=True),
        lambda w: pullback_by_autograd(y, x, w, retain_graph=True),
    )


def jacobian_norm(jvp: Map, vjp: Map, v: Cloud, iterations: int) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The largest singular value of ∂T/∂X and its error: power iteration on JᵀJ, all its vectors kept (Lanczos).

    From below, but for rounding. JᵀJ is symmetric, so one of its eigenvalues lies within the residual.
    """
    square, residual = arnoldi(lambda v: vjp(jvp(v)), v, iterations)
    return square.sqrt(), (square + residual).sqrt() - square.sqrt()


def jacobian_radius(vjp: Map, v: Cloud, iterations: int) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The largest |eigenvalue| of ∂T/∂X and its error, on either side: J need not be symmetric.

    Jᵀ has the same eigenvalues, and a product with it takes one pass back where one with J takes two.
    """
    return arnoldi(vjp, v, iterations)


def arnoldi(A: Map, v: Cloud, iterations: int) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The largest |eigenvalue| of a linear map on the space of v, Av, A²v, …, and how far off it may be.

    The residual ‖Az − λz‖ of its unit vector z times the condition number of λ there (1 where A is symmetric), and rounding.
    """
    basis = torch.zeros(iterations + 1, v.numel(), dtype=torch.float64, device=v.device)
    H = basis.new_zeros(iterations + 1, iterations)
    basis[0] = (v / v.norm()).double().flatten()
    for step in range(iterations):
        w, known_basis = A(basis[step].view_as(v).to(v.dtype)).double().flatten(), basis[: step + 1]
        for _ in range(2):  # once more, or rounding spoils the basis
            coefficients = known_basis @ w
            H[: step + 1, step] += coefficients
            w = w - coefficients @ known_basis
        H[step + 1, step] = w.norm()
        if float(w.norm()) <= 1e-10 * float(H.norm()):
            return _largest_eigenvalue(H[: step + 2, : step + 1])
        basis[step + 1] = w / w.norm()
    return _largest_eigenvalue(H)


def _largest_eigenvalue(H: Float[Tensor, "k1 k"]) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The largest |eigenvalue| of what Arnoldi found, and its error."""
    eigenvalues, vectors = torch.linalg.eig(H[:-1])
    index = eigenvalues.abs().argmax()
    z, left_vector = vectors[:, index], torch.linalg.pinv(vectors)[index]
    condition = z.norm() * left_vector.norm()
    residual = H[-1, -1] * z[-1].abs() / z.norm()
    return eigenvalues[index].abs(), condition * (residual + ROUNDING * H.norm())


def prompt_dependence(vjp: Map, x: Cloud, generator: torch.Generator, probes: int = 4) -> Float[Tensor, ""]:
    """‖∂T_last/∂X_others‖² / ‖∂T_last/∂X‖², by random probes of the last token's new place."""
    own_square, total_square = x.new_zeros((), dtype=torch.float64), x.new_zeros((), dtype=torch.float64)
    for _ in range(probes):
        probe = torch.zeros_like(x)
        probe[-1] = torch.randn(x.shape[-1], generator=generator).to(x)
        gradient = vjp(probe).double()
        own_square, total_square = own_square + gradient[-1].square().sum(), total_square + gradient.square().sum()
    return 1 - own_square / total_square


def _control_fields(fields: dict[str, Field]) -> dict[str, Field]:
    """The same numbers of the control."""
    description = "of the control, the same architecture at initial weights, on the same text"
    return {
        f"{name}_untrained": replace(fields[name], definition=f"{name} {description}", null="", null_sd="")
        for name in CONTROL_FIELDS
    }


LAYER_DIMS = ("layer",)
FIELDS = {
    "residual": Field(
        LAYER_DIMS, "‖T(X) − X‖/‖X‖ of the layer's map T on the tokens that are not massive: 0 at a fixed point"
    ),
    "residual_token": Field(("layer", "token"), "‖T(x) − x‖/‖x‖ of every token"),
    "turn": Field(
        LAYER_DIMS,
        "mean angle by which the layer turns the directions x/‖x‖ of the tokens, applied once",
        "radians",
        null="turn_null",
        null_sd="turn_null_sd",
    ),
    "turn_null": Field(
        LAYER_DIMS,
        "mean of the same over all permutations of the layer's displacements among the tokens, T(x) − x of one given to another",
        "radians",
    ),
    "turn_null_sd": Field(LAYER_DIMS, "standard deviation of that over all permutations", "radians"),
    "turn_draws": Field(
        ("draw", "layer"), "the turn under permutations that were drawn, each the same in all layers", "radians"
    ),
    "turn_p": Field(
        (),
        "how often permuted displacements turn directions, in the mean over layers, as far from their own median: two-sided, "
        "never below 1/(draws + 1)",
    ),
    "settling": Field(
        ("layer", "time"),
        "mean angle by which the directions x/‖x‖ still turn when the layer is applied once more",
        "radians",
        null="settling_null",
        null_sd="settling_null_sd",
    ),
    "settling_null": Field(
        ("layer", "time"),
        "mean angle if at that time the displacements were permuted among the tokens, over all permutations",
        "radians",
    ),
    "settling_null_sd": Field(("layer", "time"), "standard deviation of that over all permutations", "radians"),
    "jacobian_norm": Field(
        LAYER_DIMS,
        "largest singular value of ∂T/∂X (all tokens together), by Lanczos: the most a small change can grow",
    ),
    "jacobian_norm_error": Field(
        LAYER_DIMS,
        "a singular value lies so near to jacobian_norm: from the residual of the iteration",
        basis_dependent=True,
    ),
    "jacobian_radius": Field(
        LAYER_DIMS, "largest |eigenvalue| of ∂T/∂X, by Arnoldi: below 1 the layer is locally contracting here"
    ),
    "jacobian_radius_error": Field(
        LAYER_DIMS,
        "how far off jacobian_radius may be, on either side, to first order: residual of Arnoldi's vector times the condition number",
        basis_dependent=True,
    ),
    "boundary": Field(
        LAYER_DIMS,
        "share of the squared Jacobian of the last token's new place that lies in other tokens: its dependence on the prompt, by "
        "random probes",
        basis_dependent=True,
    ),
}


def _report_settings(results: Results) -> dict[str, Any]:
    """The last layer only: each layer costs a few forward passes. Fewer iterations leave the radius too uncertain."""
    return {"iterations": 14, "times": 1, "layers": [results.view.layers - 1]}


FIXED_POINT = Analysis(
    name="fixed_point",
    question="Does a layer leave the tokens nearly in place, and would they settle if it were applied again and again?",
    ask=fixed_point,
    needs="model",
    report_runs=(ReportRun("covers", 9, for_files=True),),
    controls=1,
    long_text_controls=False,
    start_early=True,
    report=_report_settings,
    long_text={"iterations": 4},
    fields=FIELDS | _control_fields(FIELDS),
)
