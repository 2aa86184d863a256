"""Does a head read similarity in E? Its scores against the cosines of the tokens, position and length partialled out."""

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
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.device_transfer import to_device
from rheoscope.space.masked_means import centre_points
from rheoscope.space.report_run import ReportRun
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.settings import Bounds, Count, Draws, Seed
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.statistics.nulls import pooled_p_values, q_values, random_rotations, z_scores

if TYPE_CHECKING:
    import xarray

MEAN_FIELDS = ("agreement", "agreement_raw", "agreement_uncentred", "agreement_embedding", "position_baseline")
CONTROL_FIELDS = ("agreement", "agreement_raw")
"""Those of them that stand beside the untrained control."""
MAX_DRAWS_AT_ONCE = 4


@torch.no_grad()
def agreement(
    trace: Trace,
    draws: Draws = 200,
    seed: Seed = 0,
    least: Annotated[int, Bounds(1, 10_000)] = 8,
    keep_massive: bool = False,
    control: Trace | None = None,
    queries: Count | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """Does each head attend to what is similar in E? The headline of the covers.

    **Answers** "does a query score those keys high that lie near it in the space it reads?" 1: attention reads similarity
    in E; 0: unrelated; below 0: it reads dissimilarity.

    **Formula** for a query i, over the permitted keys j ≠ i: Spearman correlation of the score s_ij (as the model has it,
    position and cap included) and cos(x̂_i − x̄, x̂_j − x̄), partial given |i − j| and the length ‖x̂_j − x̄‖ of the key
    token; the mean over queries with at least `least` such keys. Massive tokens are dropped on both sides. A query whose
    scores (or cosines) do not vary counts 0.

    **Null** random M of the same singular values: the clouds are turned by random rotations Q and Q' and read by the
    head's own projections, rotary positions and biases, M'(δ) = Q M(δ) Q'ᵀ; `draws` of them (0 leaves the null out). All heads
    are turned by the same two, so heads that share a key still do, and the mean over heads of a draw is that of random heads.
    p-values come from the draws of all heads together (`pooled_p`), so 20 draws of 24 heads reach 1/481; NaN where a head's
    draws have no spread.

    **Control** what training made of it: `control=rs.load(…, untrained=True).trace(text)`, the same text in the same
    architecture at initial weights.

    **Takes** `queries`, how many of a long text's are looked at, drawn at random from `seed` and each beside all its keys (None:
    all); `agreement_error` is what that leaves uncertain. The null sees the same queries, so p is as good as with all.

    **Gives** (layer, head): `agreement` (of some queries with `agreement_error`), `agreement_raw`, `agreement_uncentred`,
    `agreement_embedding`, `position_baseline`, `null_mean`, `null_sd`, `z`, `p_value`, `q_value`, with a control `agreement_untrained` and
    `agreement_raw_untrained`; (layer): `queries`. NaN in a layer where no query has enough keys (a narrow window).
    `mean_agreement` over all heads and, of random heads, `mean_agreement_null_draws` (draw): `p_values` of the two answers for the model
    as a whole.

    **Laws** M = I gives 1 and M = −I gives −1 for x̂ of one length around 0; in [−1, 1]; unchanged by every move that
    leaves the logits unchanged, by a scale of the scores and by anything added to a row of them.

    **Siblings** `over_texts` joins several texts, `prefix_stability` says whether scores outlast another
    beginning, `scores` what they are made of, `distortion` what the images of the cloud lose.

    >>> import rheoscope as rs
    >>> found = rs.agreement(rs.load().trace("The keys to the cabinet are on the table in the old hall"), draws=2)
    >>> bool((abs(found.agreement) <= 1).all())
    True
    """
    settings: dict[str, Any] = {"seed": seed, "least": least, "keep_massive": keep_massive, "queries": queries}
    control_values = {} if control is None else _control_values(trace, control, settings)
    values = {
        name: x[0] for name, x in batch(Traces.from_trace(trace), draws, progress=progress, **settings).items()
    } | control_values
    attributes = provenance(trace, keep_massive, draws=draws, seed=seed, least=least)
    attributes |= {} if control is None else {"control": describe_model(control)}
    attributes |= {} if queries is None else {"sampled_queries": queries}
    coords = {"layer": range(trace.view.layers), "head": range(trace.view.heads)}
    return AGREEMENT.label(values, coords, attributes)


def _control_values(trace: Trace, control: Trace, settings: dict[str, Any]) -> dict[str, Float[Tensor, "layer h"]]:
    """What stands beside the heads: those of the control, which must have read the same tokens in as many layers and heads."""
    check_control(trace, control)
    control_result = batch(Traces.from_trace(control), draws=0, **settings)
    return {f"{name}_untrained": control_result[name][0] for name in CONTROL_FIELDS}


@torch.no_grad()
def batch(
    traces: Traces,
    draws: int = 200,
    seed: int = 0,
    least: int = 8,
    keep_massive: bool = False,
    queries: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Tensor]:
    """The same of many texts at once: every field of the declaration but those of a control, (text, *dims)."""
    if draws == 1 or draws < 0 or least < 4 or (queries is not None and queries < 2):
        raise RheoscopeError(
            "a null needs 2 draws or more, a partial correlation 4 keys or more, an error 2 queries or more, got "
            f"draws={draws}, least={least}, queries={queries}; type draws=200, least=8, queries=128"
        )
    n_steps = 1 + math.ceil(draws / MAX_DRAWS_AT_ONCE)
    tables = []
    for done, rotation_pair in enumerate(
        (None, *random_rotation_pairs(traces.view.width, draws, seed, traces.points.device)), 1
    ):
        tables.append(_agreement_table(traces, rotation_pair, least, keep_massive, queries, seed))
        if progress is not None:
            progress(done, n_steps)
    return _values(tables[0], [table.means[..., 0] for table in tables[1:]])


def random_rotation_pairs(width: int, draws: int, seed: int, device: torch.device) -> Iterator[RotationPair]:
    """Random rotations of E for queries and for keys, a few draws at a time; the same ones serve every layer."""
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, draws, MAX_DRAWS_AT_ONCE):
        Q = to_device(random_rotations(2 * min(MAX_DRAWS_AT_ONCE, draws - start), width, generator), device)
        yield Q[0::2], Q[1::2]


@dataclass(frozen=True, eq=False)
class AgreementTable:
    """All means of all heads (of `c` turns of the clouds), the error of the first where queries are left out, and how many there are."""

    means: Float[Tensor, "c b layer h 5"]
    standard_error: Float[Tensor, "c b layer h"] | None
    n_queries: Float[Tensor, "b layer"]


def _agreement_table(
    traces: Traces,
    rotation_pair: RotationPair | None,
    min_keys: int,
    keep_massive: bool,
    max_queries: int | None,
    seed: int,
) -> AgreementTable:
    is_included = traces.valid_mask(keep_massive, min_tokens=2)
    embedding_directions = directions(centre_points(at_least_float32(traces.points[:, 0]), is_included))
    queries_at_once = cache_block_numel(is_included.device) // (
        is_included.numel() * traces.view.heads * (1 if rotation_pair is None else len(rotation_pair[0]))
    )
    sampled_queries = sample_queries(
        traces.valid_mask_on_cpu(keep_massive), max_queries, seed, max(1, queries_at_once), is_included.device
    )
    layer_results = [
        kernel(
            layer_input,
            rotation_pair,
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
            f"agreement needs a query with at least {min_keys} other keys that are not massive, and none of the "
            f"{int(is_included.sum(-1).min())} tokens has; type a longer text"
        )
    return AgreementTable(means, errors if sampled_queries.is_sampled else None, counts)


def enough_keys_guaranteed(traces: Traces, sampled_queries: SampledQueries, min_keys: int) -> bool:
    """Whether a query of every text is known to have enough keys before a device is asked, which would have to be waited for."""
    masks = (traces.view.heads_of(layer).mechanism.mask for layer in range(traces.view.layers))
    return sampled_queries.min_earlier_tokens >= min_keys and any(mask.is_causal or mask.allows_all for mask in masks)


def kernel(
    layer_input: BatchLayerInput,
    rotation_pair: RotationPair | None,
    embedding_directions: Float[Tensor, "b n d"],
    min_keys: int,
    blocks: list[QueryBlock],
    omitted_fraction: Float[Tensor, " b"],
) -> tuple[Float[Tensor, "c b h 5"], Float[Tensor, "c b h"], Float[Tensor, " b"]]:
    """The five means of all heads of one layer (of `c` turns of its clouds), the error of the first, and how many queries they are over.

    `start` are the directions of the tokens' embeddings, `blocks` the queries that are looked at; NaN where no query has enough
    keys.
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
    controls=1,
    start_early=True,
    report={"draws": 12},
    long_text={"draws": 5, "queries": 32},
    batch=batch,
    fields={
        "agreement": Field(
            HEAD_DIMS,
            "mean over queries of Spearman's correlation, over keys, of score and cosine of centred x̂, given distance and key length",
            null="null_mean",
            null_sd="null_sd",
        ),
        "agreement_error": Field(HEAD_DIMS, "standard error of agreement, where only some queries were looked at"),
        "agreement_raw": Field(HEAD_DIMS, "the same, nothing partialled out: nearness and length count as similarity"),
        "agreement_uncentred": Field(
            HEAD_DIMS, "as agreement, the cosine of x̂ as it is, the mean of the cloud not taken away"
        ),
        "agreement_embedding": Field(
            HEAD_DIMS, "as agreement, the cosine of the centred embeddings of the tokens (x⁰)"
        ),
        "position_baseline": Field(
            HEAD_DIMS, "Spearman correlation of score and nearness −|i − j|: what position alone explains"
        ),
        "agreement_untrained": Field(
            HEAD_DIMS, "agreement of the control, the same architecture at initial weights, on the same text"
        ),
        "agreement_raw_untrained": Field(HEAD_DIMS, "agreement_raw of the control"),
        "queries": Field(("layer",), "queries with enough usable keys, over which means are taken"),
        "null_mean": Field(
            HEAD_DIMS,
            "mean agreement of random M of the same singular values: x̂ turned at random, queries and keys apart",
        ),
        "null_sd": Field(HEAD_DIMS, "standard deviation of agreement among random M of the same singular values"),
        "z": Field(HEAD_DIMS, "(agreement − null_mean) / null_sd"),
        "p_value": Field(
            HEAD_DIMS, "how often random M lie as far from their null, two-sided, from the draws of all heads together"
        ),
        "q_value": Field(
            HEAD_DIMS,
            "share of false finds among all heads at least as far from their null (Benjamini and Hochberg)",
        ),
        "mean_agreement": Field((), "mean of agreement over all heads"),
        "mean_agreement_null_draws": Field(
            ("draw",), "mean of agreement over all heads, turned at random, draw by draw"
        ),
    },
)
