"""Is keeping every token's identity the cheapest way to move the cloud? Exact optimal transport from layer to layer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import stdev
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.flow.cloud import clouds
from rheoscope.flow.sinkhorn import divergence
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.chance import permutations
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

EXACT = 2048
"""Tokens up to which the assignment is solved; a cost matrix of float64 has 32 MiB there."""
Cloud = Float[Tensor, "n d"]


@torch.no_grad()
def transport(
    trace: Trace,
    space: str = "raw",
    grain: str = "layer",
    strides: Sequence[int] | None = None,
    draws: int = 4,
    seed: int = 0,
    keep_massive: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """The cloud as a measure that is transported: from every layer to the next, and over strides of 2, 4, … layers.

    **Answers** "do tokens keep their identity because that is the cheapest way to get the next cloud, or could they swap?"

    **Formula** W₂² = min_σ mean ‖y_σ(i) − x_i‖²; κ = (W_rand² − W_id²)/(W_rand² − W₂²). Null: y_i = x_i + Δ_π(i), the same
    displacements given to other tokens.

    **Gives** (step): `identity_cost`, `w2_squared`, `random_cost`, `kappa`, `identity_share`, both nulls, `efficiency`; the
    same over strides as `…_strided` (stride, step), NaN past the end; `coupling` (step, token); `geodesic_straightness`.

    **Laws** κ ≤ 1; W₂² ≤ identity cost; W₂ obeys the triangle inequality, so straightness lies in [0, 1]; unchanged by a turn
    and a shift of E.

    **Source** exact assignment by Jonker and Volgenant up to 2048 tokens; beyond, the Sinkhorn divergence stands for W₂² and
    the likeliest partner for the coupling, `attrs["method"]` says so and `attrs["error"]` how far κ's denominator is from exact on
    512 of the tokens. That takes seconds a pair: choose `strides` and `draws`.

    >>> import rheoscope as rs
    >>> found = rs.transport(rs.load().trace("The keys to the cabinet are on the table"))
    >>> bool((found.kappa <= 1 + 1e-9).all())
    True
    """
    seen = clouds(trace, space, grain, keep_massive, least=2)
    points, last = seen.points.double(), len(seen) - 1
    strides = powers(last) if strides is None else _checked(strides, last)
    attributes = {"draws": draws, "seed": seed} | method(points, seed) | seen.attributes
    coords = {
        "step": list(seen.steps[1:]),
        "token": seen.tokens,
        "word": ("token", seen.words),
        "stride": list(strides),
    }
    return TRANSPORT.answer(kernel(points, strides, draws, seed, progress), coords, attributes)


def kernel(
    points: Float[Tensor, "p n d"],
    strides: Sequence[int],
    draws: int,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Tensor]:
    """Every pair of clouds that lie a stride apart; an assignment is solved on the CPU, one pair after the other."""
    last, moves = len(points) - 1, {}
    pairs = [(stride, at) for stride in strides for at in range(last - stride + 1)]
    for done, (stride, at) in enumerate(pairs):
        moves[stride, at] = moved(points[at], points[at + stride], draws, seed)
        if progress is not None:
            progress(done + 1, len(pairs))
    found = _values(points, moves, list(strides))
    return found if draws else {name: x for name, x in found.items() if "_null" not in name}


@dataclass(frozen=True, eq=False)
class Moved:
    """What it takes to bring one cloud to another."""

    figures: dict[str, float]
    coupling: Int[Tensor, " n"]


def moved(x: Cloud, y: Cloud, draws: int, seed: int) -> Moved:
    """All numbers of one pair of clouds, with their nulls."""
    orders = permutations(len(x), draws, seed)
    identity, random, best, coupling = costs(x, y)
    kappas = [_kappa(x, x + (y - x)[order]) for order in orders]
    shares = [in_place(x, y, order) for order in orders]
    figures = {
        "identity_cost": identity,
        "w2_squared": best,
        "random_cost": random,
        "kappa": kappa(identity, random, best),
        "kappa_null": _mean(kappas),
        "kappa_null_sd": _spread(kappas),
        "identity_share": in_place(x, y),
        "identity_share_null": _mean(shares),
        "identity_share_null_sd": _spread(shares),
        "efficiency": best / identity if identity > 0 else 1.0,
    }
    return Moved(figures, coupling)


def costs(x: Cloud, y: Cloud) -> tuple[float, float, float, Int[Tensor, " n"]]:
    """Identity, random and least cost, summed in float64 over pairs, and the coupling of the least."""
    best, coupling = least(x, y)
    identity = float((y - x).square().sum(-1).mean())
    spread = (x - x.mean(0)).square().sum(-1).mean() + (y - y.mean(0)).square().sum(-1).mean()
    random = spread + (y.mean(0) - x.mean(0)).square().sum()
    return identity, float(random), min(best, identity), coupling


def least(x: Cloud, y: Cloud) -> tuple[float, Int[Tensor, " n"]]:
    """W₂² and its coupling: exact up to `EXACT` tokens, the Sinkhorn divergence beyond."""
    if len(x) > EXACT:
        return divergence(x, y)
    coupling = assignment(squared_distances(x, y))
    return float((y[coupling.to(y.device)] - x).square().sum(-1).mean()), coupling


def method(points: Float[Tensor, "p n d"], seed: int, part: int = 512) -> dict[str, Any]:
    """How W₂² is found; with Sinkhorn, its error on part of the tokens: (random − S)/(random − W₂²) − 1, the worst over layers."""
    if points.shape[1] <= EXACT:
        return {"method": "exact"}
    some = points[:, torch.randperm(points.shape[1], generator=torch.Generator().manual_seed(seed))[:part]]
    errors = []
    for x, y in pairwise(some):
        _, random, exact, _ = costs(x, y)
        errors.append((random - divergence(x, y)[0]) / max(random - exact, 1e-30) - 1)
    return {"method": "sinkhorn", "error": max(errors, key=abs)}


def squared_distances(x: Cloud, y: Cloud) -> Float[Tensor, "n m"]:
    """‖y_j − x_i‖² of all pairs, both clouds seen from one centre so that little cancels."""
    centre = x.mean(0)
    x, y = x - centre, y - centre
    return (x.square().sum(-1)[:, None] + y.square().sum(-1) - 2 * x @ y.mT).clamp(min=0)


def assignment(cost: Float[Tensor, "n n"]) -> Int[Tensor, " n"]:
    """The permutation of least Σ C_iσ(i); the identity where it is as good as any."""
    import lap

    table = np.ascontiguousarray(cost.cpu().numpy())
    columns = lap.lapjvr(table, return_cost=False, precision="float64")[1]
    stay = float(np.trace(table))
    if stay <= float(table[np.arange(len(table)), columns].sum()) * (1 + 1e-12):
        columns = np.arange(len(table))
    return torch.as_tensor(np.asarray(columns, dtype=np.int64))


def kappa(identity: float, random: float, best: float) -> float:
    """1 where the clouds are points that cannot be told apart."""
    return (random - identity) / (random - best) if random - best > 1e-12 * random else 1.0


def _kappa(x: Cloud, y: Cloud) -> float:
    return kappa(*costs(x, y)[:3])


def in_place(x: Cloud, y: Cloud, order: Int[Tensor, " n"] | None = None) -> float:
    """The share of tokens that the optimal coupling of directions, seen from the clouds' means, leaves in place.

    With an order, its null: what each direction becomes is given to another token.
    """
    x, y = _directions(x), _directions(y)
    coupling = least(x, y if order is None else x + (y - x)[order])[1]
    return float((coupling.cpu() == torch.arange(len(x))).double().mean())


def powers(layers: int) -> list[int]:
    """1, 2, 4, … and the whole way.

    >>> powers(6)
    [1, 2, 4, 6]
    """
    return sorted({layers, *(2**k for k in range(layers.bit_length()) if 2**k <= layers)})


def _directions(x: Cloud) -> Cloud:
    centred = x - x.mean(0)
    return centred / centred.norm(dim=-1, keepdim=True).clamp(min=1e-30)


def _values(
    points: Float[Tensor, "p n d"], moves: dict[tuple[int, int], Moved], strides: list[int]
) -> dict[str, Tensor]:
    last = len(points) - 1
    values: dict[str, Tensor] = {}
    for name in OF_PAIR:
        table = torch.full((len(strides), last), float("nan"), dtype=torch.float64)
        for (stride, at), one in moves.items():
            table[strides.index(stride), at + stride - 1] = one.figures[name]
        values |= {f"{name}_strided": table, name: table[0]}
    values["coupling"] = torch.stack([moves[1, at].coupling for at in range(last)])
    whole = moves[last, 0] if (last, 0) in moves else moved(points[0], points[-1], 0, 0)
    way = sum(moves[1, at].figures["w2_squared"] ** 0.5 for at in range(last))
    straight = whole.figures["w2_squared"] ** 0.5 / way if way > 0 else 1.0
    values["geodesic_straightness"] = torch.tensor(straight, dtype=torch.float64)
    return values


def _checked(strides: Sequence[int], last: int) -> list[int]:
    wrong = [stride for stride in strides if not 1 <= stride <= last]
    if wrong or 1 not in strides:
        came = f"{wrong[0]}" if wrong else f"{list(strides)} without 1"
        raise RheoscopeError(
            f"strides are whole numbers from 1 to {last}, 1 among them, got {came}; type strides=[1, {last}]"
        )
    return sorted(set(strides))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _spread(values: list[float]) -> float:
    return stdev(values) if len(values) > 1 else float("nan")


OF_PAIR: dict[str, Field] = {
    "identity_cost": Field(("step",), "mean ‖y_i − x_i‖²: what it costs that every token stays itself"),
    "w2_squared": Field(("step",), "W₂²: the least mean ‖y_σ(i) − x_i‖² over all permutations σ"),
    "random_cost": Field(("step",), "mean ‖y_j − x_i‖² over all pairs: what pairing at random costs"),
    "kappa": Field(
        ("step",),
        "(random − identity)/(random − W₂²): 1 where identity is optimal, 0 where it is no better than chance",
        null="kappa_null",
        null_sd="kappa_null_sd",
    ),
    "kappa_null": Field(("step",), "the same with the displacements permuted among the tokens, mean over draws"),
    "kappa_null_sd": Field(("step",), "standard deviation of κ over the draws of its null"),
    "identity_share": Field(
        ("step",),
        "share of tokens that the optimal coupling leaves in place, on the centred sphere",
        null="identity_share_null",
        null_sd="identity_share_null_sd",
    ),
    "identity_share_null": Field(
        ("step",), "the same with the displacements of the directions permuted among the tokens, mean over draws"
    ),
    "identity_share_null_sd": Field(("step",), "standard deviation of the identity share over the draws of its null"),
    "efficiency": Field(("step",), "W₂²/identity cost: 1 almost everywhere, so it says little"),
}
"""What one pair of clouds gives."""


def _strided(field: Field) -> Field:
    null, spread = (name and f"{name}_strided" for name in (field.null, field.null_sd))
    definition = f"{field.definition}, from `stride` layers before"
    return replace(field, dims=("stride", "step"), definition=definition, null=null, null_sd=spread)


TRANSPORT = Analysis(
    name="transport",
    question="Is keeping every token's identity the cheapest way to move the cloud?",
    ask=transport,
    needs="trace",
    fields=OF_PAIR
    | {f"{name}_strided": _strided(field) for name, field in OF_PAIR.items()}
    | {
        "coupling": Field(("step", "token"), "the token whose new place this token would take in the optimal coupling"),
        "geodesic_straightness": Field(
            (), "W₂ from first to last cloud over the sum of W₂ between layers: 1 on a geodesic"
        ),
    },
)
