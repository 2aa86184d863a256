"""Rank correlation of the scores of a head with token similarity, controlling for distance and key length."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.lower.block_size import cache_block_numel
from rheoscope.covers.agreement.query_agreement import (
    QueryBlock,
    RotationPair,
    SampledQueries,
    directions,
    query_correlations,
    query_key_vectors,
    sample_queries,
)
from rheoscope.covers.layer_inputs import BatchLayerInput, check_control, describe_model, provenance, read_batch_layers
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.running.block_device import on_block
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.layer_rotations import layer_rotations
from rheoscope.space.masked_means import centre_points
from rheoscope.space.report_run import ReportRun
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.settings import Bounds, Count, Draws, Seed
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View
from rheoscope.statistics.nulls import pooled_p_values, q_values, z_scores

if TYPE_CHECKING:
    import xarray

MEAN_FIELDS = ("agreement", "agreement_raw", "agreement_uncentred", "agreement_embedding", "position_baseline")
CONTROL_FIELDS = ("agreement", "agreement_raw")
"""The fields that are also computed for the untrained control."""
MAX_DRAWS_AT_ONCE = 4


@torch.no_grad()
def agreement(
    trace: Trace,
    draws: Draws = 200,
    seed: Seed = 0,
    min_keys: Annotated[int, Bounds(1, 10_000)] = 8,
    keep_massive: bool = False,
    control: Trace | None = None,
    max_queries: Count | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """Does each head attend to tokens that are similar in E?

    **Question** Does a query score a key higher if the two tokens are close in the space that the head reads? A value of
    1 means that attention ranks keys by similarity. 0 means no relation, and negative values mean dissimilarity.

    **Formula** For a query i and its permitted keys j ≠ i, the partial Spearman correlation of the score s_ij with
    cos(x̂_i − x̄, x̂_j − x̄). It controls for the distance |i − j| and the key length ‖x̂_j − x̄‖. The score is the
    model's own, with position and soft cap. Massive tokens are left out as queries and as keys. A query with constant
    scores or cosines counts as 0. `agreement` is the mean over queries with at least `min_keys` keys.

    **Null** Random M with the same singular values, M'(δ) = Q M(δ) Q'ᵀ. The clouds of queries and keys are rotated at
    random and projected by the head itself, with its positions and biases. If the norm subtracts the mean, they rotate among
    the vectors with mean 0. All heads share the two rotations of a draw.
    The p-values pool the draws of all heads, so 20 draws of 24 heads reach 1/481. They are NaN if the draws of a head
    have no spread.

    **Control** The same text in the same architecture at initial weights:
    `control=rs.load(…, untrained=True).trace(text)`.

    **Settings** `max_queries` limits the analysis of a long text to random queries, each with all its keys. None means
    all queries. `agreement_error` is the standard error of this sampling. The null uses the same queries. `draws=0`
    omits the null.

    **Returns** (layer, head): `agreement`, `agreement_raw`, `agreement_uncentred`, `agreement_embedding`,
    `position_baseline`, `null_mean`, `null_sd`, `z`, `p_value` and `q_value`. With a control also `agreement_untrained`
    and `agreement_raw_untrained`. (layer): `queries`. A layer in which no query has enough keys is NaN. For the model as
    a whole: `mean_agreement`, and (draw): `mean_agreement_null_draws`.

    **Laws** M = I gives 1 and M = −I gives −1 if all x̂ have the same length around 0. Values lie in [−1, 1]. They do not
    change under reparametrisations that preserve the logits, under a positive factor of the scores, or if a constant is
    added to a row of scores.

    **See also** `over_texts` combines several texts. `prefix_stability` tests whether scores survive another prefix.
    `scores` splits the scores into parts. `distortion` measures what the images of the cloud lose.

    >>> import rheoscope as rs
    >>> result = rs.agreement(rs.load().trace("The keys to the cabinet are on the table in the old hall"), draws=2)
    >>> bool((abs(result.agreement) <= 1).all())
    True
    """
    settings: dict[str, Any] = {
        "seed": seed,
        "min_keys": min_keys,
        "keep_massive": keep_massive,
        "max_queries": max_queries,
    }
    control_values = {} if control is None else _control_values(trace, control, settings)
    values = {
        name: x[0] for name, x in batch(Traces.from_trace(trace), draws, progress=progress, **settings).items()
    } | control_values
    attributes = provenance(trace, keep_massive, draws=draws, seed=seed, min_keys=min_keys)
    attributes |= {} if control is None else {"control": describe_model(control)}
    attributes |= {} if max_queries is None else {"sampled_queries": max_queries}
    coords = {"layer": range(trace.view.layers), "head": range(trace.view.heads)}
    return AGREEMENT.label(values, coords, attributes)


def _control_values(trace: Trace, control: Trace, settings: dict[str, Any]) -> dict[str, Float[Tensor, "layer h"]]:
    """The fields of the control, which must have the same tokens, layers and heads."""
    check_control(trace, control)
    control_result = batch(Traces.from_trace(control), draws=0, **settings)
    return {f"{name}_untrained": control_result[name][0] for name in CONTROL_FIELDS}


@torch.no_grad()
def batch(
    traces: Traces,
    draws: int = 200,
    seed: int = 0,
    min_keys: int = 8,
    keep_massive: bool = False,
    max_queries: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Tensor]:
    """Every declared field except those of a control, for many texts at once: (text, *dims)."""
    _check_settings(draws, min_keys, max_queries)
    n_steps = 1 + math.ceil(draws / MAX_DRAWS_AT_ONCE)
    tables = []
    for done, rotation_pairs in enumerate(
        (None, *random_rotation_pairs(traces.view, draws, seed, traces.points.device)), 1
    ):
        tables.append(_agreement_table(traces, rotation_pairs, min_keys, keep_massive, max_queries, seed))
        if progress is not None:
            progress(done, n_steps)
    return _values(tables[0], [table.means[..., 0] for table in tables[1:]])


def _check_settings(draws: int, min_keys: int, max_queries: int | None) -> None:
    if draws == 1 or draws < 0:
        raise RheoscopeError(Message("draws must be 0 or at least 2, got {value}", value=draws), use(draws=200))
    if min_keys < 4:
        raise RheoscopeError(
            Message("min_keys must be at least 4 for a partial correlation, got {value}", value=min_keys),
            use(min_keys=8),
        )
    if max_queries is not None and max_queries < 2:
        raise RheoscopeError(
            Message("max_queries must be at least 2 for a standard error, got {value}", value=max_queries),
            use(max_queries=128),
        )


def random_rotation_pairs(view: View, draws: int, seed: int, device: torch.device) -> Iterator[list[RotationPair]]:
    """For every layer random rotations of what queries read and of what keys read, a few draws at a time.

    Layers share them. Where the norm subtracts the mean, they rotate the vectors with mean 0.
    """
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, draws, MAX_DRAWS_AT_ONCE):
        rotations = layer_rotations(view, 2 * min(MAX_DRAWS_AT_ONCE, draws - start), generator, device)
        yield [(Q[0::2], Q[1::2]) for Q in rotations]


@dataclass(frozen=True, eq=False)
class AgreementTable:
    """Means over queries for every head and every rotation, with the standard error of the first if queries are sampled."""

    means: Float[Tensor, "c b layer h 5"]
    standard_error: Float[Tensor, "c b layer h"] | None
    n_queries: Float[Tensor, "b layer"]


def _agreement_table(
    traces: Traces,
    rotation_pairs: list[RotationPair] | None,
    min_keys: int,
    keep_massive: bool,
    max_queries: int | None,
    seed: int,
) -> AgreementTable:
    is_included = traces.valid_mask(keep_massive, min_tokens=2)
    embedding_directions = directions(centre_points(at_least_float32(traces.points[:, 0]), is_included))
    queries_at_once = cache_block_numel(is_included.device) // (
        is_included.numel() * traces.view.heads * (1 if rotation_pairs is None else len(rotation_pairs[0][0]))
    )
    sampled_queries = sample_queries(
        traces.valid_mask_on_cpu(keep_massive), max_queries, seed, max(1, queries_at_once), is_included.device
    )
    layer_results = [
        kernel(
            layer_input,
            None if rotation_pairs is None else rotation_pairs[layer_input.layer],
            embedding_directions,
            min_keys,
            sampled_queries.blocks,
            sampled_queries.omitted_fraction,
        )
        for layer_input in read_batch_layers(traces, is_included)
    ]
    means, errors, counts = (
        torch.stack(layer_values, layer_axis)
        for layer_values, layer_axis in zip(zip(*layer_results, strict=True), (2, 2, 1), strict=True)
    )
    if not (enough_keys_guaranteed(traces, sampled_queries, min_keys) or bool(counts.any(-1).all())):
        raise RheoscopeError(
            Message(
                "agreement needs a query with at least {min_keys} other keys that are not massive, but none of the "
                "{n} tokens has that many; use a longer text",
                min_keys=min_keys,
                n=int(is_included.sum(-1).min()),
            )
        )
    return AgreementTable(means, errors if sampled_queries.is_sampled else None, counts)


def enough_keys_guaranteed(traces: Traces, sampled_queries: SampledQueries, min_keys: int) -> bool:
    """Whether every text is certain to have a query with enough keys, decided without synchronising with the device."""
    masks = (traces.view.heads_of(layer).mechanism.mask for layer in range(traces.view.layers))
    return sampled_queries.min_earlier_tokens >= min_keys and any(mask.is_causal or mask.allows_all for mask in masks)


@on_block
def kernel(
    layer_input: BatchLayerInput,
    rotation_pair: RotationPair | None,
    embedding_directions: Float[Tensor, "b n d"],
    min_keys: int,
    blocks: list[QueryBlock],
    omitted_fraction: Float[Tensor, " b"],
) -> tuple[Float[Tensor, "c b h 5"], Float[Tensor, "c b h"], Float[Tensor, " b"]]:
    """The five means of all heads of one layer, the standard error of the first, and the number of queries.

    The means are NaN if no query has enough keys. `c` counts the rotations of the clouds.
    """
    q, k = query_key_vectors(layer_input, rotation_pair)
    total = torch.zeros(*q.shape[:3], 5, dtype=torch.float64, device=q.device)
    squares, n_queries = torch.zeros_like(total[..., 0]), torch.zeros_like(total[0, :, 0, 0])
    for has_enough_keys, correlations in query_correlations(layer_input, q, k, embedding_directions, min_keys, blocks):
        correlations = torch.where(has_enough_keys[:, None, :, None], correlations, 0)
        total, squares = total + correlations.sum(-2), squares + correlations[..., 0].square().sum(-1)
        n_queries = n_queries + has_enough_keys.sum(-1).double()
    mean = total / n_queries[:, None, None]
    variance = (squares / n_queries[:, None] - mean[..., 0].square()).clamp(min=0) / (n_queries[:, None] - 1).clamp(
        min=1
    )
    return mean, (variance * omitted_fraction.double()[:, None]).sqrt(), n_queries


def _values(agreement_table: AgreementTable, null_chunks: list[Float[Tensor, "_ b layer h"]]) -> dict[str, Tensor]:
    table = agreement_table.means[0]
    values = dict(zip(MEAN_FIELDS, table.unbind(-1), strict=True)) | {"queries": agreement_table.n_queries}
    values |= {} if agreement_table.standard_error is None else {"agreement_error": agreement_table.standard_error[0]}
    values["mean_agreement"] = table[..., 0].flatten(1).nanmean(-1)
    if null_chunks:
        null_samples = torch.cat(null_chunks)
        mean, sd = null_samples.mean(0), null_samples.std(0)
        p = torch.stack(
            [
                pooled_p_values(*value_and_null)
                for value_and_null in zip(table[..., 0], null_samples.unbind(1), strict=True)
            ]
        )
        values |= {"null_mean": mean, "null_sd": sd, "z": z_scores(table[..., 0], mean, sd), "p_value": p}
        values["q_value"] = torch.stack([q_values(text_p) for text_p in p])
        values["mean_agreement_null_draws"] = null_samples.flatten(2).nanmean(-1).mT
    return values


HEAD_DIMS = ("layer", "head")
AGREEMENT = Analysis(
    name="agreement",
    question="Does each head attend to what is similar in the space it reads?",
    ask=agreement,
    needs="trace",
    shown_with=("head_types", "distortion", "distorted_pairs"),
    report_runs=(ReportRun("covers", 0, options=("draws", "control")),),
    report={"draws": 12},
    long_text={"draws": 5, "max_queries": 32},
    batch=batch,
    atlas=("agreement",),
    atlas_axis="agreement",
    atlas_settings={"draws": 0},
    fields={
        "agreement": Field(
            HEAD_DIMS,
            "partial Spearman correlation, over keys, of the score with the cosine of centred x̂, controlling for distance and key length; "
            "mean over queries",
            null="null_mean",
            null_sd="null_sd",
        ),
        "agreement_error": Field(HEAD_DIMS, "standard error of agreement if only some queries are sampled"),
        "agreement_raw": Field(HEAD_DIMS, "as agreement, without controlling for distance and key length"),
        "agreement_uncentred": Field(HEAD_DIMS, "as agreement, with the cosine of x̂ without centring"),
        "agreement_embedding": Field(HEAD_DIMS, "as agreement, with the cosine of the centred token embeddings x⁰"),
        "position_baseline": Field(
            HEAD_DIMS,
            "Spearman correlation of the score with −|i − j|, mean over queries: what position alone explains",
        ),
        "agreement_untrained": Field(
            HEAD_DIMS, "agreement of the control: the same text in the same architecture at initial weights"
        ),
        "agreement_raw_untrained": Field(HEAD_DIMS, "agreement_raw of the control"),
        "queries": Field(("layer",), "number of queries with enough keys"),
        "null_mean": Field(
            HEAD_DIMS,
            "mean agreement of random M with the same singular values",
        ),
        "null_sd": Field(HEAD_DIMS, "standard deviation of agreement over random M with the same singular values"),
        "z": Field(HEAD_DIMS, "(agreement − null_mean) / null_sd"),
        "p_value": Field(
            HEAD_DIMS, "two-sided p-value of agreement under random M, from the pooled draws of all heads"
        ),
        "q_value": Field(
            HEAD_DIMS,
            "false discovery rate among heads at least as far from their null (Benjamini and Hochberg)",
        ),
        "mean_agreement": Field((), "mean of agreement over all heads"),
        "mean_agreement_null_draws": Field(("draw",), "mean of agreement over all heads with random M, for every draw"),
    },
)
