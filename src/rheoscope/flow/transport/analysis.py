"""Must tokens stay themselves, and where do they go? Exact optimal transport of the cloud from layer to layer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.flow.cloud import Clouds, clouds
from rheoscope.flow.transport.next_token import is_tied, next_type_share, toward_next, toward_own
from rheoscope.flow.transport.optimal_assignment import EXACT, Moved, OfText, all_moved, costs
from rheoscope.flow.transport.sinkhorn import divergence
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces

if TYPE_CHECKING:
    import xarray

FEW = 4
"""Draws where assignments are dear."""


@torch.no_grad()
def transport(
    trace: Trace,
    space: str = "raw",
    grain: str = "layer",
    strides: Sequence[int] | None = None,
    draws: int = 100,
    between: int = FEW,
    seed: int = 0,
    keep_massive: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """The cloud as a measure that is transported: from every layer to the next, and over strides of 2, 4, … layers.

    **Answers** "do tokens keep their identity because that is the cheapest way to get the next cloud, or could they swap? And
    where do they go: to what comes next?"

    **Formula** W₂² = min_σ mean ‖y_σ(i) − x_i‖²; κ = (W_rand² − W_id²)/(W_rand² − W₂²). Null: y_i = x_i + Δ_π(i), the same
    displacements given to other tokens. Identity share: of the tokens, those that σ leaves in place, for clouds seen from their
    means as directions; tokens that start at one point are one type, and any of them is the place.

    **Gives** (step): `identity_cost`, `w2_squared`, `random_cost`, `kappa`, `identity_share`, both nulls, `efficiency`; the
    same over strides as `…_strided` (stride, step), NaN past the end; `coupling` (step, token); `geodesic_straightness`.
    Where they go (point): `toward_own`, `toward_next` with its null; from the embedding to the last layer: `partner` (token)
    and `next_type_share` with its null; (draw): `…_drawn`, what each draw gave for this whole way. A model that
    reads what comes next (an encoder) has no `toward_next` and no `next_type_share`: `attrs["next"]` says so, and else which
    words stand for the next token.

    **Takes** `draws` for the whole way; pairs of clouds between, whose nulls decide nothing, have `between` of them at most (0: no
    null, NaN). Beyond 2048 tokens nothing has more than 4.

    **Laws** κ ≤ 1; W₂² ≤ identity cost; W₂ obeys the triangle inequality, so straightness lies in [0, 1]; unchanged by a turn
    and a shift of E; displacements that have nothing to do with places lie within both nulls.

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
    draws = draws if points.shape[1] <= EXACT else min(draws, FEW)
    strides = powers(last) if strides is None else _checked(strides, last)
    attributes = (
        {"draws": draws, "between": between, "seed": seed, "next": next_words(trace)}
        | method(points, seed)
        | seen.attributes
    )
    coords = {
        "point": list(seen.steps),
        "step": list(seen.steps[1:]),
        "token": seen.tokens,
        "word": ("token", seen.words),
        "stride": list(strides),
    }
    (values,) = kernel([points], strides, draws, min(between, draws), seed, progress)
    values |= destinations(seen, values["partner"], draws, seed)
    return TRANSPORT.answer(_drawn(values, draws), coords, attributes)


def batch(
    traces: Traces,
    space: str = "raw",
    grain: str = "layer",
    strides: Sequence[int] | None = None,
    draws: int = 100,
    between: int = FEW,
    seed: int = 0,
    keep_massive: bool = False,
) -> dict[str, Tensor]:
    """The same of many texts, without what is said of single tokens: assignments of all of them share the cores."""
    seen = [clouds(trace, space, grain, keep_massive, least=2) for trace in traces]
    last = len(seen[0]) - 1
    long = {one.points.shape[1] > EXACT for one in seen}
    if len(long) > 1:
        raise RheoscopeError(f"texts of up to {EXACT} tokens and longer ones are asked apart; type texts of one length")
    draws = min(draws, FEW) if True in long else draws
    strides = powers(last) if strides is None else _checked(strides, last)
    each = kernel([one.points.double() for one in seen], strides, draws, min(between, draws), seed)
    each = [
        _drawn(values | destinations(one, values["partner"], draws, seed), draws)
        for one, values in zip(seen, each, strict=True)
    ]
    of_texts = (name for name in each[0] if "token" not in TRANSPORT.fields[name].dims)
    return {name: torch.stack([values[name] for values in each]).to(traces.points.device) for name in of_texts}


def _drawn(values: dict[str, Tensor], draws: int) -> dict[str, Tensor]:
    """Without nulls where nothing was drawn."""
    return values if draws else {name: x for name, x in values.items() if "_null" not in name and "_drawn" not in name}


def next_words(trace: Trace) -> str:
    """Which words stand for the next token."""
    if trace.view.sees_next:
        return "none: tokens of this model read what comes next"
    return "embedding" if is_tied(trace.view) else "unembedding, with the gain of the final norm"


def destinations(seen: Clouds, partner: Int[Tensor, " n"], draws: int, seed: int) -> dict[str, Tensor]:
    """How near the stream is to the own and the next token's word, and whose next token partners have."""
    view, ids, points = seen.trace.view, seen.trace.ids, replace(seen, space="raw").points.double()
    values = {"toward_own": toward_own(points, view, ids, seen.tokens)}
    if view.sees_next or len(ids) < 2:
        return values
    near, drawn = toward_next(points, view, ids, seen.tokens, draws, seed)
    share, shares = next_type_share(partner, ids, seen.tokens, draws, seed)
    values |= {"toward_next": near, "toward_next_drawn": drawn[-1]}
    values |= {"next_type_share": share, "next_type_share_drawn": shares}
    for name, null in (("toward_next", drawn), ("next_type_share", shares)):
        spread = null.std(-1) if draws > 1 else torch.full_like(null.mean(-1), torch.nan)
        values |= {f"{name}_null": null.mean(-1), f"{name}_null_sd": spread}
    return values


def kernel(
    texts: Sequence[OfText],
    strides: Sequence[int],
    draws: int,
    between: int,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Tensor]]:
    """Every pair of clouds that lie a stride apart, text by text; assignments are solved on the CPU, a pair on each core."""
    last = len(texts[0]) - 1
    pairs = sorted(((stride, at) for stride in {*strides, last} for at in range(last - stride + 1)), reverse=True)
    drawn = [draws if stride == last else between for stride, _ in pairs]
    found = []
    for one in all_moved(texts, [(at, at + stride) for stride, at in pairs], drawn, seed):
        found.append(one)
        if progress is not None:
            progress(len(found), len(pairs) * len(texts))
    each = [found[at : at + len(pairs)] for at in range(0, len(found), len(pairs))]
    return [_values(last, dict(zip(pairs, moves, strict=True)), list(strides)) for moves in each]


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


def powers(layers: int) -> list[int]:
    """1, 2, 4, … and the whole way.

    >>> powers(6)
    [1, 2, 4, 6]
    """
    return sorted({layers, *(2**k for k in range(layers.bit_length()) if 2**k <= layers)})


def _values(last: int, moves: dict[tuple[int, int], Moved], strides: list[int]) -> dict[str, Tensor]:
    values: dict[str, Tensor] = {}
    for name in OF_PAIR:
        rows = [[float("nan")] * (s - 1) + [moves[s, at].figures[name] for at in range(last - s + 1)] for s in strides]
        table = torch.tensor(rows, dtype=torch.float64)
        values |= {f"{name}_strided": table, name: table[0]}
    values["coupling"] = torch.stack([moves[1, at].coupling for at in range(last)])
    whole = moves[last, 0]
    values["partner"] = whole.partner
    values |= {f"{name}_drawn": torch.tensor(drawn, dtype=torch.float64) for name, drawn in whole.drawn.items()}
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
        "share of tokens that the optimal coupling leaves in place, on the centred sphere; equal points are one type",
        null="identity_share_null",
        null_sd="identity_share_null_sd",
    ),
    "identity_share_null": Field(
        ("step",),
        "the same with the displacements permuted among the tokens before directions are taken, mean over draws",
    ),
    "identity_share_null_sd": Field(("step",), "standard deviation of the identity share over the draws of its null"),
    "efficiency": Field(("step",), "W₂²/identity cost: 1 almost everywhere, so it says little"),
}
"""What one pair of clouds gives."""


def _strided(field: Field) -> Field:
    null, spread = (name and f"{name}_strided" for name in (field.null, field.null_sd))
    definition = f"{field.definition}, from `stride` layers before"
    return replace(field, dims=("stride", "step"), definition=definition, null=null, null_sd=spread)


OF_WHOLE_WAY: dict[str, Field] = {
    "partner": Field(("token",), "the token whose last place a token's embedding is coupled to, on the centred sphere"),
    "kappa_drawn": Field(("draw",), "κ from the embedding to the last layer, in each draw of its null"),
    "identity_share_drawn": Field(("draw",), "identity share from the embedding to the last layer, in each draw"),
    "next_type_share": Field(
        (),
        "share of tokens whose partner's next token is of their type, from the embedding to the last layer",
        null="next_type_share_null",
        null_sd="next_type_share_null_sd",
    ),
    "next_type_share_null": Field((), "the same with the partners permuted, mean over draws"),
    "next_type_share_null_sd": Field((), "standard deviation of that over the draws"),
    "next_type_share_drawn": Field(("draw",), "the same in each draw"),
    "toward_own": Field(
        ("point",), "mean cosine of a token with its own row of the embedding, both seen from the mean of the text"
    ),
    "toward_next": Field(
        ("point",),
        "mean cosine of a token with the word of the token after it (attrs: next), both seen from the mean of the text",
        null="toward_next_null",
        null_sd="toward_next_null_sd",
    ),
    "toward_next_null": Field(
        ("point",), "the same with what lies between the first and the last token in another order, mean over draws"
    ),
    "toward_next_null_sd": Field(("point",), "standard deviation of that over the draws"),
    "toward_next_drawn": Field(("draw",), "the same at the last point in each draw"),
}
"""Where tokens go: from the embedding to the last layer, and step by step."""


TRANSPORT = Analysis(
    name="transport",
    question="Must tokens stay themselves, and do they go to what comes next?",
    ask=transport,
    batch=batch,
    needs="trace",
    fields=OF_PAIR
    | OF_WHOLE_WAY
    | {f"{name}_strided": _strided(field) for name, field in OF_PAIR.items()}
    | {
        "coupling": Field(("step", "token"), "the token whose new place this token would take in the optimal coupling"),
        "geodesic_straightness": Field(
            (), "W₂ from first to last cloud over the sum of W₂ between layers: 1 on a geodesic"
        ),
    },
)
