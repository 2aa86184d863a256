"""Does a head read similarity in E? Its scores against the cosines of the tokens, position and length partialled out."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.lower.block_size import numbers_in_cache
from rheoscope.covers.agreement.query_agreement import (
    Block,
    DrawnQueries,
    Turned,
    by_query,
    directions,
    drawn_queries,
    sides,
)
from rheoscope.covers.layer_inputs import ReadMany, check_control, layers_of_many, named, provenance
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.device_transfer import to_device
from rheoscope.space.masked_means import centred
from rheoscope.space.safe_arithmetic import exact
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.statistics.nulls import pooled_p, q_values, rotations, z_scores

if TYPE_CHECKING:
    import xarray

MEANS = ("agreement", "agreement_raw", "agreement_uncentred", "agreement_embedding", "position_baseline")
CONTROLLED = ("agreement", "agreement_raw")
"""Those of them that stand beside the untrained control."""
DRAWS_AT_ONCE = 4


@torch.no_grad()
def agreement(
    trace: Trace,
    draws: int = 200,
    seed: int = 0,
    least: int = 8,
    keep_massive: bool = False,
    control: Trace | None = None,
    queries: int | None = None,
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
    `mean_agreement` over all heads and, of random heads, `mean_agreement_drawn` (draw): `p_values` of the two answers for the model
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
    asked: dict[str, Any] = {"seed": seed, "least": least, "keep_massive": keep_massive, "queries": queries}
    beside = {} if control is None else _controlled(trace, control, asked)
    values = {name: x[0] for name, x in many(Traces.of(trace), draws, progress=progress, **asked).items()} | beside
    attributes = provenance(trace, keep_massive, draws=draws, seed=seed, least=least)
    attributes |= {} if control is None else {"control": named(control)}
    attributes |= {} if queries is None else {"sampled_queries": queries}
    coords = {"layer": range(trace.view.layers), "head": range(trace.view.heads)}
    return AGREEMENT.answer(values, coords, attributes)


def _controlled(trace: Trace, control: Trace, asked: dict[str, Any]) -> dict[str, Float[Tensor, "layer h"]]:
    """What stands beside the heads: those of the control, which must have read the same tokens in as many layers and heads."""
    check_control(trace, control)
    found = many(Traces.of(control), draws=0, **asked)
    return {f"{name}_untrained": found[name][0] for name in CONTROLLED}


@torch.no_grad()
def many(
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
    steps = 1 + math.ceil(draws / DRAWS_AT_ONCE)
    tables = []
    for done, turned in enumerate((None, *turns(traces.view.width, draws, seed, traces.points.device)), 1):
        tables.append(_table(traces, turned, least, keep_massive, queries, seed))
        if progress is not None:
            progress(done, steps)
    return _values(tables[0], [one.means[..., 0] for one in tables[1:]])


def turns(width: int, draws: int, seed: int, device: torch.device) -> Iterator[Turned]:
    """Random rotations of E for queries and for keys, a few draws at a time; the same ones serve every layer."""
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, draws, DRAWS_AT_ONCE):
        Q = to_device(rotations(2 * min(DRAWS_AT_ONCE, draws - start), width, generator), device)
        yield Q[0::2], Q[1::2]


@dataclass(frozen=True, eq=False)
class Table:
    """All means of all heads (of `c` turns of the clouds), the error of the first where queries are left out, and how many there are."""

    means: Float[Tensor, "c b layer h 5"]
    error: Float[Tensor, "c b layer h"] | None
    queries: Float[Tensor, "b layer"]


def _table(
    traces: Traces, turned: Turned | None, least: int, keep_massive: bool, queries: int | None, seed: int
) -> Table:
    kept = traces.ordinary(keep_massive, least=2)
    start = directions(centred(exact(traces.points[:, 0]), kept))
    at_once = numbers_in_cache(kept.device) // (
        kept.numel() * traces.view.heads * (1 if turned is None else len(turned[0]))
    )
    drawn = drawn_queries(traces.ordinary_on_cpu(keep_massive), queries, seed, max(1, at_once), kept.device)
    found = [kernel(read, turned, start, least, drawn.blocks, drawn.left_out) for read in layers_of_many(traces, kept)]
    means, errors, counts = (
        torch.stack(each, at) for each, at in zip(zip(*found, strict=True), (2, 2, 1), strict=True)
    )
    if not (surely_enough(traces, drawn, least) or bool(counts.any(-1).all())):
        raise RheoscopeError(
            f"agreement needs a query with at least {least} other keys that are not massive, and none of the "
            f"{int(kept.sum(-1).min())} tokens has; type a longer text"
        )
    return Table(means, errors if drawn.sampled else None, counts)


def surely_enough(traces: Traces, drawn: DrawnQueries, least: int) -> bool:
    """Whether a query of every text is known to have enough keys before a device is asked, which would have to be waited for."""
    masks = (traces.view.heads_of(layer).mechanism.mask for layer in range(traces.view.layers))
    return drawn.before >= least and any(mask.is_causal or mask.forbids_nothing for mask in masks)


def kernel(
    read: ReadMany,
    turned: Turned | None,
    start: Float[Tensor, "b n d"],
    least: int,
    blocks: list[Block],
    left_out: Float[Tensor, " b"],
) -> tuple[Float[Tensor, "c b h 5"], Float[Tensor, "c b h"], Float[Tensor, " b"]]:
    """The five means of all heads of one layer (of `c` turns of its clouds), the error of the first, and how many queries they are over.

    `start` are the directions of the tokens' embeddings, `blocks` the queries that are looked at; NaN where no query has enough
    keys.
    """
    q, k = sides(read, turned)
    total = torch.zeros(*q.shape[:3], 5, dtype=torch.float64, device=q.device)
    squares, count = torch.zeros_like(total[..., 0]), torch.zeros_like(total[0, :, 0, 0])
    for enough, found in by_query(read, q, k, start, least, blocks):
        found = torch.where(enough[:, None, :, None], found, 0)
        total, squares = total + found.sum(-2), squares + found[..., 0].square().sum(-1)
        count = count + enough.sum(-1).double()
    mean = total / count[:, None, None]
    variance = (squares / count[:, None] - mean[..., 0].square()).clamp(min=0) / (count[:, None] - 1).clamp(min=1)
    return mean, (variance * left_out.double()[:, None]).sqrt(), count


def _values(own: Table, null: list[Float[Tensor, "_ b layer h"]]) -> dict[str, Tensor]:
    table = own.means[0]
    values = dict(zip(MEANS, table.unbind(-1), strict=True)) | {"queries": own.queries}
    values |= {} if own.error is None else {"agreement_error": own.error[0]}
    values["mean_agreement"] = table[..., 0].flatten(1).nanmean(-1)
    if null:
        drawn = torch.cat(null)
        mean, sd = drawn.mean(0), drawn.std(0)
        p = torch.stack([pooled_p(*both) for both in zip(table[..., 0], drawn.unbind(1), strict=True)])
        values |= {"null_mean": mean, "null_sd": sd, "z": z_scores(table[..., 0], mean, sd), "p_value": p}
        values["q_value"] = torch.stack([q_values(one) for one in p])
        values["mean_agreement_drawn"] = drawn.flatten(2).nanmean(-1).mT
    return values


OF_HEAD = ("layer", "head")
AGREEMENT = Analysis(
    name="agreement",
    question="Does each head attend to what is similar in the space it reads?",
    ask=agreement,
    needs="trace",
    batch=many,
    fields={
        "agreement": Field(
            OF_HEAD,
            "mean over queries of Spearman's correlation, over keys, of score and cosine of centred x̂, given distance and key length",
            null="null_mean",
            null_sd="null_sd",
        ),
        "agreement_error": Field(OF_HEAD, "standard error of agreement, where only some queries were looked at"),
        "agreement_raw": Field(OF_HEAD, "the same, nothing partialled out: nearness and length count as similarity"),
        "agreement_uncentred": Field(
            OF_HEAD, "as agreement, the cosine of x̂ as it is, the mean of the cloud not taken away"
        ),
        "agreement_embedding": Field(OF_HEAD, "as agreement, the cosine of the centred embeddings of the tokens (x⁰)"),
        "position_baseline": Field(
            OF_HEAD, "Spearman correlation of score and nearness −|i − j|: what position alone explains"
        ),
        "agreement_untrained": Field(
            OF_HEAD, "agreement of the control, the same architecture at initial weights, on the same text"
        ),
        "agreement_raw_untrained": Field(OF_HEAD, "agreement_raw of the control"),
        "queries": Field(("layer",), "queries with enough usable keys, over which means are taken"),
        "null_mean": Field(
            OF_HEAD,
            "mean agreement of random M of the same singular values: x̂ turned at random, queries and keys apart",
        ),
        "null_sd": Field(OF_HEAD, "standard deviation of agreement among random M of the same singular values"),
        "z": Field(OF_HEAD, "(agreement − null_mean) / null_sd"),
        "p_value": Field(
            OF_HEAD, "how often random M lie as far from their null, two-sided, from the draws of all heads together"
        ),
        "q_value": Field(
            OF_HEAD,
            "share of false finds among all heads at least as far from their null (Benjamini and Hochberg)",
        ),
        "mean_agreement": Field((), "mean of agreement over all heads"),
        "mean_agreement_drawn": Field(("draw",), "mean of agreement over all heads, turned at random, draw by draw"),
    },
)
