"""Optimal transport of the cloud between layers: is keeping token identity the cheapest way to move it?"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.flow.cloud import Clouds, select_clouds
from rheoscope.flow.transport.next_token import (
    cosine_with_next_token,
    cosine_with_own_token,
    is_mispredicted,
    is_tied,
    mispredicted_share,
    next_type_share,
    prediction_accuracy,
)
from rheoscope.flow.transport.optimal_assignment import (
    MAX_EXACT_TOKENS,
    PairTransport,
    TextClouds,
    transport_all_pairs,
    transport_costs,
)
from rheoscope.flow.transport.sinkhorn import sinkhorn_divergence
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.results import Results
from rheoscope.space.settings import Bounds, Draws, Grain, Seed, SpaceName
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces

if TYPE_CHECKING:
    import xarray

EXACT_NULL = "next_type_share_mispredicted_null"
"""The null that needs no draws."""
MAX_EXPENSIVE_DRAWS = 4
"""The largest number of draws where assignments are expensive."""


@torch.no_grad()
def transport(
    trace: Trace,
    space: SpaceName = "raw",
    grain: Grain = "layer",
    strides: Sequence[Annotated[int, Bounds(1, 10_000)]] | None = None,
    draws: Draws = 100,
    step_draws: Draws = MAX_EXPENSIVE_DRAWS,
    seed: Seed = 0,
    keep_massive: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """Optimal transport of the cloud from every layer to the next, and over strides of 2, 4, … layers.

    **Question** Is keeping every token's identity the cheapest way to move the cloud, and do tokens move toward the next token?

    **Formula** W₂² = min_σ mean ‖y_σ(i) − x_i‖² and κ = (W_rand² − W_id²)/(W_rand² − W₂²). The null permutes the displacements,
    y_i = x_i + Δ_π(i). The identity share is the share of tokens that σ maps to themselves, for centred and normalised clouds. Tokens
    that start at the same point count as one type.

    **Returns** (step): `identity_cost`, `w2_squared`, `random_cost`, `kappa` and `identity_share` with their nulls, `efficiency`.
    (stride, step): the same with the suffix `_strided`, NaN beyond the last layer. (step, token): `coupling`. Scalar:
    `geodesic_straightness`. Direction of the movement, (point): `toward_own`, `toward_next` with its null. From the embedding to
    the last layer: `partner` (token), `next_type_share` with its null, the same where the model predicts wrongly
    (`…_mispredicted`), `next_token_accuracy`, and (draw): `…_null_draws`. A bidirectional model (an encoder) has none of these
    and no `toward_next`. `attrs["next_token_source"]` names the table of next-token vectors, and `attrs["tied_embedding"]` is 1
    if it is the embedding itself.

    **Settings** `draws` is the number of null draws from the embedding to the last layer. `step_draws` is that for all shorter
    pairs of clouds; 0 omits their null. Beyond 2048 tokens at most 4 draws are used.

    **Laws** κ ≤ 1. W₂² ≤ identity cost. W₂ satisfies the triangle inequality, so the straightness lies in [0, 1]. Rotating or
    shifting E changes nothing. Displacements that do not depend on the position lie within both nulls.

    **Source** The assignment is exact (Jonker and Volgenant) up to 2048 tokens. Beyond that the Sinkhorn divergence replaces W₂²
    and the most likely partner the coupling, which takes seconds per pair. `attrs["method"]` names the method. `attrs["error"]`
    is the relative error of the denominator of κ on 512 tokens.

    >>> import rheoscope as rs
    >>> result = rs.transport(rs.load().trace("The keys to the cabinet are on the table"))
    >>> bool((result.kappa <= 1 + 1e-9).all())
    True
    """
    clouds = select_clouds(trace, space, grain, keep_massive, min_tokens=2)
    points, last = clouds.points.double(), len(clouds) - 1
    draws = draws if points.shape[1] <= MAX_EXACT_TOKENS else min(draws, MAX_EXPENSIVE_DRAWS)
    strides = default_strides(last) if strides is None else _check_strides(strides, last)
    attributes = (
        {"draws": draws, "step_draws": step_draws, "seed": seed, "next_token_source": next_token_source(trace)}
        | {"tied_embedding": int(is_tied(trace.view))}
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
    (values,) = kernel([points], strides, draws, min(step_draws, draws), seed, progress)
    values |= destination_values(clouds, values["partner"], draws, seed)
    return TRANSPORT.label(_drop_empty_null(values, draws), coords, attributes)


def batch(
    traces: Traces,
    space: str = "raw",
    grain: str = "layer",
    strides: Sequence[int] | None = None,
    draws: int = 100,
    step_draws: int = MAX_EXPENSIVE_DRAWS,
    seed: int = 0,
    keep_massive: bool = False,
) -> dict[str, Tensor]:
    """The fields of `transport` without a token axis, for many texts. The assignments of all texts share the cores."""
    text_clouds = [select_clouds(trace, space, grain, keep_massive, min_tokens=2) for trace in traces]
    last = len(text_clouds[0]) - 1
    is_long = {clouds.points.shape[1] > MAX_EXACT_TOKENS for clouds in text_clouds}
    if len(is_long) > 1:
        raise RheoscopeError(
            Message(
                "a batch must not mix texts of at most {limit:,} tokens with longer texts; run them separately",
                limit=MAX_EXACT_TOKENS,
            )
        )
    draws = min(draws, MAX_EXPENSIVE_DRAWS) if True in is_long else draws
    strides = default_strides(last) if strides is None else _check_strides(strides, last)
    values_per_text = kernel(
        [clouds.points.double() for clouds in text_clouds], strides, draws, min(step_draws, draws), seed
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
    """Remove the null fields if there are no draws, except the one that is exact."""
    return values if draws else {name: x for name, x in values.items() if "_null" not in name or name == EXACT_NULL}


def next_token_source(trace: Trace) -> Message:
    """The table from which the vectors of the next tokens are taken."""
    if trace.view.is_bidirectional:
        return Message("none, because this model is bidirectional")
    return Message("embedding") if is_tied(trace.view) else Message("unembedding with the gain of the final norm")


def destination_values(clouds: Clouds, partner: Int[Tensor, " n"], draws: int, seed: int) -> dict[str, Tensor]:
    """Cosines with the vectors of the own and of the next token, and the share of partners followed by the own type.

    Patches and frames have no vectors of their own.
    """
    view, ids, points = clouds.trace.view, clouds.trace.ids, replace(clouds, space="raw").points.double()
    if not view.reads_tokens:
        return {}
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
    return values | prediction_values(clouds, partner)


def prediction_values(clouds: Clouds, partner: Int[Tensor, " n"]) -> dict[str, Tensor]:
    """The accuracy of the next-token prediction and the next-type share where it is wrong; empty if tokens are not predicted."""
    trace, positions = clouds.trace, torch.tensor(clouds.positions)
    if trace.view.unembed is None and trace.view.prediction_head is None:
        return {}
    is_wrong = is_mispredicted(trace.view, trace.points[-1], trace.ids, positions)
    share, null = mispredicted_share(partner, trace.ids, positions, is_wrong)
    return {
        "next_token_accuracy": prediction_accuracy(is_wrong, positions, len(trace.ids)),
        "next_type_share_mispredicted": share,
        EXACT_NULL: null,
    }


def kernel(
    texts: Sequence[TextClouds],
    strides: Sequence[int],
    draws: int,
    step_draws: int,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Tensor]]:
    """Transport between all pairs of clouds at the given strides, text by text. Assignments are solved on all CPU cores."""
    last = len(texts[0]) - 1
    pairs = sorted(((stride, start) for stride in {*strides, last} for start in range(last - stride + 1)), reverse=True)
    pair_draws = [draws if stride == last else step_draws for stride, _ in pairs]
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
    """The method for W₂². For Sinkhorn also its error (random − S)/(random − W₂²) − 1 on a sample of tokens, worst over layers."""
    if points.shape[1] <= MAX_EXACT_TOKENS:
        return {"method": "exact"}
    sample = points[:, torch.randperm(points.shape[1], generator=torch.Generator().manual_seed(seed))[:sample_size]]
    errors = []
    for x, y in pairwise(sample):
        _, random_cost, exact_cost, _ = transport_costs(x, y)
        errors.append((random_cost - sinkhorn_divergence(x, y)[0]) / max(random_cost - exact_cost, 1e-30) - 1)
    return {"method": "sinkhorn", "error": max(errors, key=abs)}


def default_strides(n_layers: int) -> list[int]:
    """1, 2, 4, … and the number of layers.

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
        raise RheoscopeError(
            Message(
                "strides must lie between 1 and {last} and include 1, got {received}",
                last=last,
                received=str(list(strides)),
            ),
            use(strides=[1, last]),
        )
    return sorted(set(strides))


PAIR_FIELDS: dict[str, Field] = {
    "identity_cost": Field(("step",), "mean ‖y_i − x_i‖², the cost of keeping every token's identity"),
    "w2_squared": Field(("step",), "W₂², the smallest mean ‖y_σ(i) − x_i‖² over all permutations σ"),
    "random_cost": Field(("step",), "mean ‖y_j − x_i‖² over all pairs, the cost of random pairing"),
    "kappa": Field(
        ("step",),
        "(random − identity)/(random − W₂²): 1 if identity is optimal, 0 if it is no better than random pairing",
        null="kappa_null",
        null_sd="kappa_null_sd",
    ),
    "kappa_null": Field(("step",), "mean κ after permuting the displacements among the tokens"),
    "kappa_null_sd": Field(("step",), "standard deviation of κ over the draws of the null"),
    "identity_share": Field(
        ("step",),
        "share of tokens that the optimal coupling of centred directions maps to their own type",
        null="identity_share_null",
        null_sd="identity_share_null_sd",
    ),
    "identity_share_null": Field(
        ("step",),
        "mean identity share after permuting the displacements among the tokens",
    ),
    "identity_share_null_sd": Field(("step",), "standard deviation of the identity share over the draws of the null"),
    "efficiency": Field(("step",), "W₂² divided by the identity cost, which is close to 1 almost everywhere"),
}
"""The fields of one pair of clouds."""


def _strided_field(field: Field) -> Field:
    null, null_sd = (name and f"{name}_strided" for name in (field.null, field.null_sd))
    definition = Message("{definition}, between clouds `stride` layers apart", definition=field.definition)
    return replace(field, dims=("stride", "step"), definition=definition, null=null, null_sd=null_sd)


END_TO_END_FIELDS: dict[str, Field] = {
    "partner": Field(
        ("token",),
        "token whose final direction is coupled to this token's embedding (optimal coupling of centred directions)",
    ),
    "kappa_null_draws": Field(("draw",), "κ from the embedding to the last layer, per draw of the null"),
    "identity_share_null_draws": Field(
        ("draw",), "identity share from the embedding to the last layer, per draw of the null"
    ),
    "next_type_share": Field(
        (),
        "share of tokens whose partner is followed by a token of their own type; a partner at the end is left out",
        null="next_type_share_null",
        null_sd="next_type_share_null_sd",
    ),
    "next_type_share_null": Field((), "mean of next_type_share over permutations of the partners"),
    "next_type_share_null_sd": Field((), "standard deviation of next_type_share over permutations of the partners"),
    "next_type_share_null_draws": Field(("draw",), "next_type_share per permutation of the partners"),
    "next_token_accuracy": Field((), "share of tokens whose next token is the model's top prediction"),
    "next_type_share_mispredicted": Field(
        (),
        "next_type_share among partners whose next token is not the model's top prediction; NaN without such partners",
        null="next_type_share_mispredicted_null",
    ),
    "next_type_share_mispredicted_null": Field(
        (), "exact mean of next_type_share_mispredicted over permutations of these partners"
    ),
    "toward_own": Field(
        ("point",), "mean cosine between a token and its own row of the embedding, both centred on the text"
    ),
    "toward_next": Field(
        ("point",),
        "mean cosine between a token and the vector of the next token (attrs: next_token_source), both centred on the text",
        null="toward_next_null",
        null_sd="toward_next_null_sd",
    ),
    "toward_next_null": Field(
        ("point",), "mean of toward_next after permuting the tokens between the first and the last"
    ),
    "toward_next_null_sd": Field(("point",), "standard deviation of toward_next over the draws of the null"),
    "toward_next_null_draws": Field(("draw",), "toward_next at the last point, per draw of the null"),
}
"""The fields of the movement from the embedding to the last layer, and of its direction."""


def _long_text_settings(results: Results) -> dict[str, Any]:
    """Only stride 1 and the whole depth, with few draws, which are enough for Student's t."""
    return {"strides": sorted({1, results.view.layers}), "draws": 5, "step_draws": 0}


TRANSPORT = Analysis(
    name="transport",
    question="Is keeping every token's identity the cheapest way to move the cloud, and do tokens move toward the next token?",
    ask=transport,
    batch=batch,
    needs="trace",
    atlas=(
        *("kappa", "identity_share", "toward_own", "toward_next"),
        *("next_type_share", "next_type_share_mispredicted", EXACT_NULL, "next_token_accuracy"),
    ),
    atlas_settings={"draws": 0, "step_draws": 0, "strides": (1,)},
    long_text=_long_text_settings,
    fields=PAIR_FIELDS
    | END_TO_END_FIELDS
    | {f"{name}_strided": _strided_field(field) for name, field in PAIR_FIELDS.items()}
    | {
        "coupling": Field(("step", "token"), "token whose new position this token takes in the optimal coupling"),
        "geodesic_straightness": Field(
            (), "W₂ from the first to the last cloud divided by the sum of W₂ between layers, 1 on a geodesic"
        ),
    },
)
