"""Is a layer near a fixed point? How far it moves the cloud, what it does when applied again and again, its Jacobian."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.definition import reference
from rheoscope.covers.reading import provenance, tokens
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.model import Model, check_made_by
from rheoscope.space.trace import Trace
from rheoscope.space.view import View

if TYPE_CHECKING:
    import xarray

Cloud = Float[Tensor, "n d"]
Map = Callable[[Tensor], Tensor]


@torch.no_grad()
def fixed_point(
    model: Model,
    trace: Trace,
    layers: Sequence[int] | None = None,
    times: int = 8,
    iterations: int = 20,
    seed: int = 0,
    keep_massive: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """How each layer, as a map T of clouds, stands to its fixed points.

    **Answers** "does this layer leave the cloud nearly in place, would it settle if applied again, does it amplify small
    changes, how much does a token hang on its prompt?"

    **Formula** T(X) = X + attention + MLP, on the cloud that the layer reads. Applied k times, directions x/‖x‖ are compared
    (pre-norm streams grow without bound, the direction may settle). Norm and radius of ∂T/∂X at the cloud come from
    products with vectors alone: `iterations` of power iteration on JᵀJ, and as many steps of Arnoldi, from below.

    **Gives** (layer): `residual`, `jacobian_norm`, `jacobian_radius`, `boundary`; (layer, token): `residual_token`;
    (layer, time): `settling`. `layers` picks some. Blocks whose norms follow their sums are refused.

    **Laws** T of the View is the model's own (checked on every call); radius ≤ norm; equal to the dense Jacobian's on small
    sizes; a causal Jacobian is block triangular, its radius the largest over its diagonal blocks.

    **Siblings** `trajectory` has the same displacements token by token; `boundary` compares the same tokens after other ones.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> found = rs.fixed_point(model, model.trace("The keys to the cabinet"), layers=[0], iterations=5)
    >>> bool((found.jacobian_radius <= found.jacobian_norm).all())
    True
    """
    check_made_by(model, trace)
    chosen, generator = chosen_layers(trace.view, layers, times, iterations), torch.Generator().manual_seed(seed)
    kept, rows = tokens(trace, keep_massive), []
    for layer in chosen:
        rows.append(kernel(layer_map(trace, layer), trace.read_by(layer), kept, times, iterations, generator))
        if progress is not None:
            progress(len(rows), len(chosen))
    values = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    words = [trace.tokens[at] for at in kept.tolist()]
    coords = {"layer": chosen, "token": kept.tolist(), "word": ("token", words), "time": range(1, times + 1)}
    settings = {"times": times, "iterations": iterations, "seed": seed, "space": "raw"}
    return FIXED_POINT.answer(values, coords, provenance(trace, keep_massive) | settings)


def chosen_layers(view: View, layers: Sequence[int] | None, times: int, iterations: int) -> list[int]:
    """Some layers, or all; no layer, time or iteration is nothing to look at."""
    chosen = list(range(view.layers)) if layers is None else list(layers)
    if not chosen or times < 1 or iterations < 1:
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
        moved = (reference(heads.mechanism, *heads.read(x))[0][0].to(x.dtype) @ W_O).sum(0)
        moved = moved if b_O is None else moved + b_O
        middle = x + (moved if heads.after is None else heads.after.own(moved))
        return middle + mlp(x if parallel else middle)

    ends = [*trace.where[1:], len(trace.steps) - 1]
    x, wanted = trace.read_by(layer), trace.points[ends[layer]]
    error = float((T(x) - wanted).detach().norm() / wanted.norm())
    if not error < (1e-3 if x.dtype.itemsize >= 4 else 0.1):
        raise RheoscopeError(
            f"layer {layer} is no x + attention + MLP (off by {error:.1g}): its norms follow its sums, so its map is not in "
            "the View; type rs.trajectory(trace) for how far it moves the tokens"
        )
    return T


def kernel(
    T: Map, x: Cloud, kept: Tensor, times: int, iterations: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """All numbers of one map at one cloud."""
    after = T(x)
    moved, size = (after - x)[kept].double(), x[kept].double()
    there = size.norm(dim=-1)
    start = torch.randn(x.shape, generator=generator).to(x)
    forward, back = jacobian(T, x)
    return {
        "residual": moved.norm() / size.norm(),
        "residual_token": moved.norm(dim=-1) / torch.where(there > 0, there, 1),
        "settling": settling(orbit(T, x, times), kept),
        "jacobian_norm": norm(forward, back, start, iterations),
        "jacobian_radius": radius(forward, start, iterations),
        "boundary": from_others(back, x, generator),
    }


def orbit(T: Map, x: Cloud, times: int) -> Float[Tensor, "times1 n d"]:
    """Directions x/‖x‖ of a cloud, then after every application of T; NaN once a point is no longer finite."""
    found = [_directions(x)]
    for _ in range(times):
        x = T(x)
        x = x if bool(x.isfinite().all()) else torch.full_like(x, float("nan"))
        found.append(_directions(x))
    return torch.stack(found)


def settling(orbit: Float[Tensor, "times1 n d"], kept: Tensor) -> Float[Tensor, " time"]:
    """How far directions turn at every further application, in the mean."""
    return angles(orbit[1:], orbit[:-1])[:, kept].mean(-1)


def angles(a: Float[Tensor, "*t n d"], b: Float[Tensor, "*t n d"]) -> Float[Tensor, "*t n"]:
    """Angles between unit vectors, exact near 0 too."""
    return 2 * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1))


def _directions(x: Cloud) -> Cloud:
    x = x.double()
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-300)


def jacobian(T: Map, x: Cloud) -> tuple[Map, Map]:
    """v ↦ J v and w ↦ Jᵀ w at a cloud, both from one pass of T: J v is the gradient of Jᵀ w, which is linear, by w."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = T(x)
        w = torch.zeros_like(y, requires_grad=True)
        pulled = torch.autograd.grad(y, x, w, create_graph=True)[0]
    return (
        lambda v: torch.autograd.grad(pulled, w, v, retain_graph=True)[0],
        lambda w: torch.autograd.grad(y, x, w, retain_graph=True)[0],
    )


def norm(forward: Map, back: Map, v: Cloud, iterations: int) -> Float[Tensor, ""]:
    """The largest singular value of ∂T/∂X, from below: power iteration on JᵀJ."""
    v = v / v.norm()
    for _ in range(iterations):
        v = back(forward(v))
        v = v / v.norm().clamp(min=1e-30)
    return forward(v).double().norm()


def radius(forward: Map, v: Cloud, iterations: int) -> Float[Tensor, ""]:
    """The largest |eigenvalue| of ∂T/∂X as Arnoldi sees it: that of J on the space of v, Jv, J²v, …"""
    basis, H = [(v / v.norm()).double()], torch.zeros(iterations + 1, iterations, dtype=torch.float64, device=v.device)
    for step in range(iterations):
        w = forward(basis[-1].to(v.dtype)).double()
        for _ in range(2):  # once more, or rounding spoils the basis
            for at, b in enumerate(basis):
                part = (b * w).sum()
                H[at, step] += part
                w = w - part * b
        H[step + 1, step] = w.norm()
        if float(w.norm()) <= 1e-10 * float(H.norm()):
            return torch.linalg.eigvals(H[: step + 1, : step + 1]).abs().amax()
        basis.append(w / w.norm())
    return torch.linalg.eigvals(H[:-1]).abs().amax()


def from_others(back: Map, x: Cloud, generator: torch.Generator, probes: int = 8) -> Float[Tensor, ""]:
    """‖∂T_last/∂X_others‖² / ‖∂T_last/∂X‖², by random probes of the last token's new place."""
    own, whole = x.new_zeros((), dtype=torch.float64), x.new_zeros((), dtype=torch.float64)
    for _ in range(probes):
        probe = torch.zeros_like(x)
        probe[-1] = torch.randn(x.shape[-1], generator=generator).to(x)
        pulled = back(probe).double()
        own, whole = own + pulled[-1].square().sum(), whole + pulled.square().sum()
    return 1 - own / whole


FIXED_POINT = Analysis(
    name="fixed_point",
    question="Does a layer leave the tokens nearly in place, and would they settle if it were applied again and again?",
    ask=fixed_point,
    needs="model",
    fields={
        "residual": Field(
            ("layer",), "‖T(X) − X‖/‖X‖ of the layer's map T on the tokens that are not massive: 0 at a fixed point"
        ),
        "residual_token": Field(("layer", "token"), "‖T(x) − x‖/‖x‖ of every token"),
        "settling": Field(
            ("layer", "time"),
            "mean angle by which the directions x/‖x‖ still turn when the layer is applied once more",
            "radians",
        ),
        "jacobian_norm": Field(
            ("layer",),
            "largest singular value of ∂T/∂X (all tokens together), by power iteration: the most a small change can grow",
        ),
        "jacobian_radius": Field(
            ("layer",), "largest |eigenvalue| of ∂T/∂X, by Arnoldi: below 1 the layer, applied for ever, would settle"
        ),
        "boundary": Field(
            ("layer",),
            "share of the squared Jacobian of the last token's new place that lies in other tokens: its dependence on the prompt, by "
            "random probes",
            basis=True,
        ),
    },
)
