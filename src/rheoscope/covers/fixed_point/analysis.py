"""Is a layer near a fixed point? How far it moves the cloud, what it does when applied again and again, its Jacobian."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.definition import reference
from rheoscope.covers.layer_inputs import check_control, named, provenance, tokens
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.autograd_pullback import transposed
from rheoscope.space.model import Model, check_made_by
from rheoscope.space.trace import Trace
from rheoscope.space.view import View
from rheoscope.statistics.nulls import p_values, permutations

if TYPE_CHECKING:
    import xarray

Cloud = Float[Tensor, "n d"]
Map = Callable[[Tensor], Tensor]


ROUNDING = 1e-6
"""Of products with a Jacobian: models compute norms and rotations in float32, whatever their dtype."""
CONTROLLED = ("residual", "settling", "turn", "turn_null", "jacobian_norm", "jacobian_radius", "boundary")
"""What stands beside the untrained control."""
NULLED = ("settling", "settling_null", "settling_null_sd")
"""Of the first application they are the turn and its null."""


@torch.no_grad()
def fixed_point(
    model: Model,
    trace: Trace,
    layers: Sequence[int] | None = None,
    times: int = 8,
    iterations: int = 20,
    draws: int = 200,
    seed: int = 0,
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
    check_made_by(model, trace)
    chosen, kept = chosen_layers(trace.view, layers, times, iterations, 0), tokens(trace, keep_massive)
    if control is not None:
        check_control(trace, control)
    traces = [trace] if control is None else [trace, control]
    rows: list[dict[str, Tensor]] = []
    for one in traces:
        generator, counted = torch.Generator().manual_seed(seed), tokens(one, keep_massive)
        for layer in chosen:
            hear = _counting(progress, 2 * iterations * len(rows), 2 * iterations * len(chosen) * len(traces))
            rows.append(kernel(layer_map(one, layer), one.read_by(layer), counted, times, iterations, generator, hear))
    values = beside_control(_stacked(rows[: len(chosen)]), _stacked(rows[len(chosen) :]))
    tables = values.pop("turns")
    values |= chance(values["turn"], tables, permutations(len(kept), draws, seed)) if draws else {}
    words = [trace.tokens[at] for at in kept.tolist()]
    coords = {"layer": chosen, "token": kept.tolist(), "word": ("token", words), "time": range(1, times + 1)}
    settings = {"times": times, "iterations": iterations, "draws": draws, "seed": seed, "space": "raw"}
    settings |= {} if control is None else {"control": named(control)}
    return FIXED_POINT.answer(values, coords, provenance(trace, keep_massive) | settings)


def _counting(progress: Callable[[int, int], None] | None, before: int, total: int) -> Callable[[], None]:
    """Called once for every product with a Jacobian: so much of all of them is done."""
    steps = count(before + 1)
    return lambda: None if progress is None else progress(min(next(steps), total), total)


def _stacked(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]} if rows else {}


def beside_control(own: dict[str, Tensor], control: dict[str, Tensor]) -> dict[str, Tensor]:
    """The numbers of a model, and those of its control under their own names."""
    return own | {f"{name}_untrained": control[name] for name in CONTROLLED if name in control}


def chance(
    turn: Float[Tensor, " layer"], tables: Float[Tensor, "layer n n"], orders: Int[Tensor, "draw n"]
) -> dict[str, Tensor]:
    """The mean turn under every order, the same in all layers, and how often the mean over layers lies as far off."""
    first = torch.arange(tables.shape[-1], device=tables.device)
    drawn = tables[:, first, orders.to(tables.device)].mean(-1).mT
    return {"turn_draws": drawn, "turn_p": p_values(turn.mean(), drawn.mean(-1))}


def chosen_layers(view: View, layers: Sequence[int] | None, times: int, iterations: int, fewest: int = 1) -> list[int]:
    """Some layers, or all; no layer, time or iteration is nothing to look at."""
    chosen = list(range(view.layers)) if layers is None else list(layers)
    if not chosen or times < 1 or iterations < fewest:
        raise RheoscopeError(
            f"one layer, one time and one iteration or more, got layers={chosen}, times={times}, "
            f"iterations={iterations}; type layers=[0], times=8, iterations=20"
        )
    return chosen


def layer_map(trace: Trace, layer: int) -> Map:
    """The map T of a layer, from its heads and its MLP; refused where it is not the model's own."""
    heads, mlp = trace.view.heads_of(layer), trace.view.mlps[layer]
    W_O, b_O = heads.W_O.detach(), None if heads.b_O is None else heads.b_O.detach()  # a function of the cloud alone
    parallel = trace.steps[trace.middle[layer]] in trace.not_read

    def T(x: Cloud) -> Cloud:
        outputs = heads.gated(reference(heads.mechanism, *heads.read(x))[0][0].to(x.dtype), x)
        moved = (outputs @ W_O).sum(0)
        moved = moved if b_O is None else moved + b_O
        middle = x + (moved if heads.after is None else heads.after.own(moved))
        return middle + mlp(x if parallel else middle)

    ends = [*trace.where[1:], len(trace.steps) - 1]
    x, wanted = trace.read_by(layer), trace.points[ends[layer]]
    error = float((T(x) - wanted).detach().norm() / wanted.norm())
    if not error < (1e-3 if trace.view.dtype.itemsize >= 4 else 0.1):
        raise RheoscopeError(
            f"layer {layer} is no x + attention + MLP (off by {error:.1g}): its norms follow its sums, so its map is not in "
            "the View; type rs.trajectory(trace) for how far it moves the tokens"
        )
    return T


def kernel(
    T: Map,
    x: Cloud,
    kept: Tensor,
    times: int,
    iterations: int,
    generator: torch.Generator,
    hear: Callable[[], None] = lambda: None,
) -> dict[str, Tensor]:
    """All numbers of one map at one cloud; `turns` is the table that its null is drawn from. `hear` is called at every product."""
    way = orbit(T, x, times)
    moved, size = (way[1] - way[0])[kept], way[0][kept]
    there = size.norm(dim=-1)
    found = {
        "residual": moved.norm() / size.norm(),
        "residual_token": moved.norm(dim=-1) / torch.where(there > 0, there, 1),
        "settling": settling(way, kept),
        "turns": turns(size, moved),
    }
    found["settling_null"], found["settling_null_sd"] = torch.stack(
        [over_permutations(turns(a[kept], (b - a)[kept])) for a, b in pairwise(way)], -1
    )
    found |= {name.replace("settling", "turn"): found[name][0] for name in NULLED}
    return found | (of_jacobian(T, x, iterations, generator, hear) if iterations else {})


def of_jacobian(
    T: Map, x: Cloud, iterations: int, generator: torch.Generator, hear: Callable[[], None]
) -> dict[str, Tensor]:
    """Norm, radius and what other tokens do to a token, from products with the Jacobian alone."""
    start = torch.randn(x.shape, generator=generator).to(x)
    forward, plain = jacobian(T, x)

    def back(w: Tensor) -> Tensor:
        hear()
        return plain(w)

    found = {"boundary": from_others(back, x, generator)}
    found["jacobian_norm"], found["jacobian_norm_error"] = norm(forward, back, start, math.ceil(iterations / 2))
    found["jacobian_radius"], found["jacobian_radius_error"] = radius(back, start, iterations)
    return found


def orbit(T: Map, x: Cloud, times: int) -> Float[Tensor, "times1 n d"]:
    """A cloud, then after every application of T; NaN once a point is no longer finite."""
    found = [x.double()]
    for _ in range(times):
        x = T(x)
        x = x if bool(x.isfinite().all()) else torch.full_like(x, float("nan"))
        found.append(x.double())
    return torch.stack(found)


def settling(orbit: Float[Tensor, "times1 n d"], kept: Tensor) -> Float[Tensor, " time"]:
    """How far directions turn at every further application, in the mean."""
    way = directions(orbit)
    return angles(way[1:], way[:-1])[:, kept].mean(-1)


def turns(x: Cloud, moved: Cloud) -> Float[Tensor, "n n"]:
    """The angle by which token i turns when it gets the displacement of token j."""
    away = moved @ directions(x).mT  # Δ_j along the direction of x_i
    across = (moved.square().sum(-1, keepdim=True) - away.square()).clamp(min=0).sqrt()
    return torch.atan2(across, x.norm(dim=-1) + away).mT


def over_permutations(table: Float[Tensor, "n n"]) -> Float[Tensor, "2"]:
    """Mean and standard deviation of the mean of table[i, π(i)] over all permutations π: Hoeffding 1951."""
    n, mean = len(table), table.mean()
    rest = table - table.mean(0) - table.mean(1, keepdim=True) + mean
    return torch.stack([mean, (rest.square().sum() / (n - 1) if n > 1 else mean * torch.nan).sqrt() / n])


def angles(a: Float[Tensor, "*t n d"], b: Float[Tensor, "*t n d"]) -> Float[Tensor, "*t n"]:
    """Angles between unit vectors, exact near 0 too."""
    return 2 * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1))


def directions(x: Float[Tensor, "*t n d"]) -> Float[Tensor, "*t n d"]:
    """x/‖x‖."""
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-300)


def jacobian(T: Map, x: Cloud) -> tuple[Map, Map]:
    """v ↦ J v and w ↦ Jᵀ w at a cloud, both from one pass of T: J v is the gradient of Jᵀ w, which is linear, by w."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = T(x)
        w = torch.zeros_like(y, requires_grad=True)
        pulled = transposed(y, x, w, create_graph=True)
    return (
        lambda v: transposed(pulled, w, v, retain_graph=True),
        lambda w: transposed(y, x, w, retain_graph=True),
    )


def norm(forward: Map, back: Map, v: Cloud, iterations: int) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The largest singular value of ∂T/∂X and its error: power iteration on JᵀJ, all its vectors kept (Lanczos).

    From below, but for rounding. JᵀJ is symmetric, so one of its eigenvalues lies within the residual.
    """
    square, rest = arnoldi(lambda v: back(forward(v)), v, iterations)
    return square.sqrt(), (square + rest).sqrt() - square.sqrt()


def radius(back: Map, v: Cloud, iterations: int) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The largest |eigenvalue| of ∂T/∂X and its error, on either side: J need not be symmetric.

    Jᵀ has the same eigenvalues, and a product with it takes one pass back where one with J takes two.
    """
    return arnoldi(back, v, iterations)


def arnoldi(A: Map, v: Cloud, iterations: int) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The largest |eigenvalue| of a linear map on the space of v, Av, A²v, …, and how far off it may be.

    The residual ‖Az − λz‖ of its unit vector z times the condition number of λ there (1 where A is symmetric), and rounding.
    """
    basis = torch.zeros(iterations + 1, v.numel(), dtype=torch.float64, device=v.device)
    H = basis.new_zeros(iterations + 1, iterations)
    basis[0] = (v / v.norm()).double().flatten()
    for step in range(iterations):
        w, known = A(basis[step].view_as(v).to(v.dtype)).double().flatten(), basis[: step + 1]
        for _ in range(2):  # once more, or rounding spoils the basis
            part = known @ w
            H[: step + 1, step] += part
            w = w - part @ known
        H[step + 1, step] = w.norm()
        if float(w.norm()) <= 1e-10 * float(H.norm()):
            return _largest(H[: step + 2, : step + 1])
        basis[step + 1] = w / w.norm()
    return _largest(H)


def _largest(H: Float[Tensor, "k1 k"]) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The largest |eigenvalue| of what Arnoldi found, and its error."""
    eigenvalues, vectors = torch.linalg.eig(H[:-1])
    at = eigenvalues.abs().argmax()
    z, left = vectors[:, at], torch.linalg.pinv(vectors)[at]
    condition = z.norm() * left.norm()
    rest = H[-1, -1] * z[-1].abs() / z.norm()
    return eigenvalues[at].abs(), condition * (rest + ROUNDING * H.norm())


def from_others(back: Map, x: Cloud, generator: torch.Generator, probes: int = 4) -> Float[Tensor, ""]:
    """‖∂T_last/∂X_others‖² / ‖∂T_last/∂X‖², by random probes of the last token's new place."""
    own, whole = x.new_zeros((), dtype=torch.float64), x.new_zeros((), dtype=torch.float64)
    for _ in range(probes):
        probe = torch.zeros_like(x)
        probe[-1] = torch.randn(x.shape[-1], generator=generator).to(x)
        pulled = back(probe).double()
        own, whole = own + pulled[-1].square().sum(), whole + pulled.square().sum()
    return 1 - own / whole


def _untrained(fields: dict[str, Field]) -> dict[str, Field]:
    """The same numbers of the control."""
    said = "of the control, the same architecture at initial weights, on the same text"
    return {
        f"{name}_untrained": replace(fields[name], definition=f"{name} {said}", null="", null_sd="")
        for name in CONTROLLED
    }


OF_LAYER = ("layer",)
FIELDS = {
    "residual": Field(
        OF_LAYER, "‖T(X) − X‖/‖X‖ of the layer's map T on the tokens that are not massive: 0 at a fixed point"
    ),
    "residual_token": Field(("layer", "token"), "‖T(x) − x‖/‖x‖ of every token"),
    "turn": Field(
        OF_LAYER,
        "mean angle by which the layer turns the directions x/‖x‖ of the tokens, applied once",
        "radians",
        null="turn_null",
        null_sd="turn_null_sd",
    ),
    "turn_null": Field(
        OF_LAYER,
        "mean of the same over all permutations of the layer's displacements among the tokens, T(x) − x of one given to another",
        "radians",
    ),
    "turn_null_sd": Field(OF_LAYER, "standard deviation of that over all permutations", "radians"),
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
        OF_LAYER,
        "largest singular value of ∂T/∂X (all tokens together), by Lanczos: the most a small change can grow",
    ),
    "jacobian_norm_error": Field(
        OF_LAYER, "a singular value lies so near to jacobian_norm: from the residual of the iteration", basis=True
    ),
    "jacobian_radius": Field(
        OF_LAYER, "largest |eigenvalue| of ∂T/∂X, by Arnoldi: below 1 the layer is locally contracting here"
    ),
    "jacobian_radius_error": Field(
        OF_LAYER,
        "how far off jacobian_radius may be, on either side, to first order: residual of Arnoldi's vector times the condition number",
        basis=True,
    ),
    "boundary": Field(
        OF_LAYER,
        "share of the squared Jacobian of the last token's new place that lies in other tokens: its dependence on the prompt, by "
        "random probes",
        basis=True,
    ),
}
FIXED_POINT = Analysis(
    name="fixed_point",
    question="Does a layer leave the tokens nearly in place, and would they settle if it were applied again and again?",
    ask=fixed_point,
    needs="model",
    fields=FIELDS | _untrained(FIELDS),
)
