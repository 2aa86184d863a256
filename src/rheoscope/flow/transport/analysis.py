"""Must tokens stay themselves, and where do they go? Exact optimal transport of the cloud from layer to layer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.flow.cloud import Clouds, select_clouds
from rheoscope.flow.transport.next_token import cosine_with_next_token, cosine_with_own_token, is_tied, next_type_share
from rheoscope.flow.transport.optimal_assignment import (
    MAX_EXACT_TOKENS,
    PairTransport,
    TextClouds,
    transport_all_pairs,
    transport_costs,
)
from rheoscope.flow.transport.sinkhorn import sinkhorn_divergence
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.results import Results
from rheoscope.space.settings import Bounds, Draws, Grain, Seed, SpaceName
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces

if TYPE_CHECKING:
    import xarray

MAX_EXPENSIVE_DRAWS = 4
"""Draws where assignments are dear."""


@torch.no_grad()
def transport(
    trace: Trace,
    space: SpaceName = "raw",
    grain: Grain = "layer",
    strides: Sequence[Annotated[int, Bounds(1, 10_000)]] | None = None,
    draws: Draws = 100,
    between: Draws = MAX_EXPENSIVE_DRAWS,
    seed: Seed = 0,
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
    and `next_type_share` with its null; (draw): `…_null_draws`, what each draw gave for this whole way. A model that
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
    clouds = select_clouds(trace, space, grain, keep_massive, min_tokens=2)
    points, last = clouds.points.double(), len(clouds) - 1
    draws = draws if points.shape[1] <= MAX_EXACT_TOKENS else min(draws, MAX_EXPENSIVE_DRAWS)
    strides = default_strides(last) if strides is None else _check_strides(strides, last)
    attributes = (
        {"draws": draws, "between": between, "seed": seed, "next": next_token_source(trace)}
        | transport_method(points, seed)
        | clouds.attributes
    )
    coords = {
        "point": list(clouds.steps),
        "step": list(clouds.steps[1:]),
        "token": clouds.positions,
        "token_text": ("token", clouds.token_texts),
        "stride": list(strides),
    }
    (values,) = kernel([points], strides, draws, min(between, draws), seed, progress)
    values |= destination_values(clouds, values["partner"], draws, seed)
    return TRANSPORT.label(_drop_empty_null(values, draws), coords, attributes)


def batch(
    traces: Traces,
    space: str = "raw",
    grain: str = "layer",
    strides: Sequence[int] | None = None,
    draws: int = 100,
    between: int = MAX_EXPENSIVE_DRAWS,
    seed: int = 0,
    keep_massive: bool = False,
) -> dict[str, Tensor]:
    """The same of many texts, without what is said of single tokens: assignments of all of them share the cores."""
    text_clouds = [select_clouds(trace, space, grain, keep_massive, min_tokens=2) for trace in traces]
    last = len(text_clouds[0]) - 1
    is_long = {clouds.points.shape[1] > MAX_EXACT_TOKENS for clouds in text_clouds}
    if len(is_long) > 1:
        raise RheoscopeError(
            f"texts of up to {MAX_EXACT_TOKENS} tokens and longer ones are asked apart; type texts of one length"
        )
    draws = min(draws, MAX_EXPENSIVE_DRAWS) if True in is_long else draws
    strides = default_strides(last) if strides is None else _check_strides(strides, last)
    values_per_text = kernel(
        [clouds.points.double() for clouds in text_clouds], strides, draws, min(between, draws), seed
    )
    values_per_text = [
        _drop_empty_null(values | destination_values(clouds, values["partner"], draws, seed), draws)
        for clouds, values in zip(text_clouds, values_per_text, strict=True)
    ]
    text_fields = (name for name in values_per_text[0] if "token" not in TRANSPORT.fields[name].dims)
    return {
        name: torch.stack([values[name] for values in values_per_text]).to(traces.points.device) for name in text_fields
    }


def _drop_empty_null(values: dict[str, Tensor], draws: int) -> dict[str, Tensor]:
    """Without nulls where nothing was drawn."""
    return (
        values
        if draws
        else {name: x for name, x in values.items() if "_null" not in name and "_null_draws" not in name}
    )


def next_token_source(trace: Trace) -> str:
    """Which words stand for the next token."""
    if trace.view.is_bidirectional:
        return "none: tokens of this model read what comes next"
    return "embedding" if is_tied(trace.view) else "unembedding, with the gain of the final norm"


def destination_values(clouds: Clouds, partner: Int[Tensor, " n"], draws: int, seed: int) -> dict[str, Tensor]:
    """How near the stream is to the own and the next token's word, and whose next token partners have."""
    view, ids, points = clouds.trace.view, clouds.trace.ids, replace(clouds, space="raw").points.double()
    values = {"toward_own": cosine_with_own_token(points, view, ids, clouds.positions)}
    if view.is_bidirectional or len(ids) < 2:
        return values
    cosine, cosine_draws = cosine_with_next_token(points, view, ids, clouds.positions, draws, seed)
    fraction, fraction_draws = next_type_share(partner, ids, clouds.positions, draws, seed)
    values |= {"toward_next": cosine, "toward_next_null_draws": cosine_draws[-1]}
    values |= {"next_type_share": fraction, "next_type_share_null_draws": fraction_draws}
    for name, null in (("toward_next", cosine_draws), ("next_type_share", fraction_draws)):
        null_sd = null.std(-1) if draws > 1 else torch.full_like(null.mean(-1), torch.nan)
        values |= {f"{name}_null": null.mean(-1), f"{name}_null_sd": null_sd}
    return values


def kernel(
    texts: Sequence[TextClouds],
    strides: Sequence[int],
    draws: int,
    between: int,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Tensor]]:
    """Every pair of clouds that lie a stride apart, text by text; assignments are solved on the CPU, a pair on each core."""
    last = len(texts[0]) - 1
    pairs = sorted(((stride, start) for stride in {*strides, last} for start in range(last - stride + 1)), reverse=True)
    pair_draws = [draws if stride == last else between for stride, _ in pairs]
    results = []
    for result in transport_all_pairs(texts, [(start, start + stride) for stride, start in pairs], pair_draws, seed):
        results.append(result)
        if progress is not None:
            progress(len(results), len(pairs) * len(texts))
    results_per_text = [results[start : start + len(pairs)] for start in range(0, len(results), len(pairs))]
    return [
        _stack_values(last, dict(zip(pairs, text_results, strict=True)), list(strides))
        for text_results in results_per_text
    ]


def transport_method(points: Float[Tensor, "p n d"], seed: int, sample_size: int = 512) -> dict[str, Any]:
    """How W₂² is found; with Sinkhorn, its error on part of the tokens: (random − S)/(random − W₂²) − 1, the worst over layers."""
    if points.shape[1] <= MAX_EXACT_TOKENS:
        return {"method": "exact"}
    sample = points[:, torch.randperm(points.shape[1], generator=torch.Generator().manual_seed(seed))[:sample_size]]
    errors = []
    for x, y in pairwise(sample):
        _, random_cost, exact_cost, _ = transport_costs(x, y)
        errors.append((random_cost - sinkhorn_divergence(x, y)[0]) / max(random_cost - exact_cost, 1e-30) - 1)
    return {"method": "sinkhorn", "error": max(errors, key=abs)}


def default_strides(n_layers: int) -> list[int]:
    """1, 2, 4, … and the whole way.

    >>> default_strides(6)
    [1, 2, 4, 6]
    """
    return sorted({n_layers, *(2**k for k in range(n_layers.bit_length()) if 2**k <= n_layers)})


def _stack_values(last: int, results: dict[tuple[int, int], PairTransport], strides: list[int]) -> dict[str, Tensor]:
    values: dict[str, Tensor] = {}
    for name in PAIR_FIELDS:
        rows = [
            [float("nan")] * (stride - 1)
            + [results[stride, start].statistics[name] for start in range(last - stride + 1)]
            for stride in strides
        ]
        table = torch.tensor(rows, dtype=torch.float64)
        values |= {f"{name}_strided": table, name: table[0]}
    values["coupling"] = torch.stack([results[1, start].coupling for start in range(last)])
    end_to_end = results[last, 0]
    values["partner"] = end_to_end.partner
    values |= {
        f"{name}_null_draws": torch.tensor(samples, dtype=torch.float64)
        for name, samples in end_to_end.null_draws.items()
    }
    path_length = sum(results[1, start].statistics["w2_squared"] ** 0.5 for start in range(last))
    straightness = end_to_end.statistics["w2_squared"] ** 0.5 / path_length if path_length > 0 else 1.0
    values["geodesic_straightness"] = torch.tensor(straightness, dtype=torch.float64)
    return values


def _check_strides(strides: Sequence[int], last: int) -> list[int]:
    invalid = [stride for stride in strides if not 1 <= stride <= last]
    if invalid or 1 not in strides:
        problem = f"{invalid[0]}" if invalid else f"{list(strides)} without 1"
        raise RheoscopeError(
            f"strides are whole numbers from 1 to {last}, 1 among them, got {problem}; type strides=[1, {last}]"
        )
    return sorted(set(strides))


PAIR_FIELDS: dict[str, Field] = {
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


def _strided_field(field: Field) -> Field:
    null, null_sd = (name and f"{name}_strided" for name in (field.null, field.null_sd))
    definition = f"{field.definition}, from `stride` layers before"
    return replace(field, dims=("stride", "step"), definition=definition, null=null, null_sd=null_sd)


END_TO_END_FIELDS: dict[str, Field] = {
    "partner": Field(("token",), "the token whose last place a token's embedding is coupled to, on the centred sphere"),
    "kappa_null_draws": Field(("draw",), "κ from the embedding to the last layer, in each draw of its null"),
    "identity_share_null_draws": Field(("draw",), "identity share from the embedding to the last layer, in each draw"),
    "next_type_share": Field(
        (),
        "share of tokens whose partner's next token is of their type, from the embedding to the last layer",
        null="next_type_share_null",
        null_sd="next_type_share_null_sd",
    ),
    "next_type_share_null": Field((), "the same with the partners permuted, mean over draws"),
    "next_type_share_null_sd": Field((), "standard deviation of that over the draws"),
    "next_type_share_null_draws": Field(("draw",), "the same in each draw"),
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
    "toward_next_null_draws": Field(("draw",), "the same at the last point in each draw"),
}
"""Where tokens go: from the embedding to the last layer, and step by step."""


def _long_text_settings(results: Results) -> dict[str, Any]:
    """Only layer by layer and from the embedding to the last layer, with few draws: Student's t needs no more."""
    return {"strides": sorted({1, results.view.layers}), "draws": 5, "between": 0}


TRANSPORT = Analysis(
    name="transport",
    question="Must tokens stay themselves, and do they go to what comes next?",
    ask=transport,
    batch=batch,
    needs="trace",
    controls=1,
    long_text=_long_text_settings,
    fields=PAIR_FIELDS
    | END_TO_END_FIELDS
    | {f"{name}_strided": _strided_field(field) for name, field in PAIR_FIELDS.items()}
    | {
        "coupling": Field(("step", "token"), "the token whose new place this token would take in the optimal coupling"),
        "geodesic_straightness": Field(
            (), "W₂ from first to last cloud over the sum of W₂ between layers: 1 on a geodesic"
        ),
    },
)
