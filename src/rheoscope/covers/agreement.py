"""Does a head read similarity in E? Its scores against the cosines of the tokens, position and length partialled out."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.attention.definition import for_every_head, scores
from rheoscope.attention.lower.block_size import numbers_in_cache
from rheoscope.attention.mechanism import Mechanism
from rheoscope.covers.reading import Read, check_control, layers, named, provenance, tokens
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.chance import drawn_rows, pooled_p, q_values, rotations, z_scores
from rheoscope.space.head import through
from rheoscope.space.ranks import ranked
from rheoscope.space.share import exact
from rheoscope.space.trace import Trace

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
    if draws == 1 or draws < 0 or least < 4 or (queries is not None and queries < 2):
        raise RheoscopeError(
            "a null needs 2 draws or more, a partial correlation 4 keys or more, an error 2 queries or more, got "
            f"draws={draws}, least={least}, queries={queries}; type draws=200, least=8, queries=128"
        )
    beside = None if control is None else _controlled(trace, control, least, keep_massive, queries, seed)
    steps = 1 + math.ceil(draws / DRAWS_AT_ONCE)
    tables = []
    for done, turned in enumerate((None, *turns(trace.view.width, draws, seed, trace.points.device)), 1):
        tables.append(_table(trace, turned, least, keep_massive, queries, seed))
        if progress is not None:
            progress(done, steps)
    attributes = provenance(trace, keep_massive, draws=draws, seed=seed, least=least)
    attributes |= {} if control is None else {"control": named(control)}
    attributes |= {} if queries is None else {"sampled_queries": queries}
    coords = {"layer": range(trace.view.layers), "head": range(trace.view.heads)}
    values = _values(tables[0], [one.means[..., 0] for one in tables[1:]], beside)
    return AGREEMENT.answer(values, coords, attributes)


Turned = tuple[Float[Tensor, "c d d"], Float[Tensor, "c d d"]]


def turns(width: int, draws: int, seed: int, device: torch.device) -> Iterator[Turned]:
    """Random rotations of E for queries and for keys, a few draws at a time; the same ones serve every layer."""
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, draws, DRAWS_AT_ONCE):
        Q = rotations(2 * min(DRAWS_AT_ONCE, draws - start), width, generator).to(device)
        yield Q[0::2], Q[1::2]


@dataclass(frozen=True, eq=False)
class Table:
    """All means of all heads (of `c` turns of the clouds), the error of the first of them, and how many queries they are over."""

    means: Float[Tensor, "c layer h 5"]
    error: Float[Tensor, "c layer h"]
    queries: Float[Tensor, " layer"]


def _table(
    trace: Trace, turned: Turned | None, least: int, keep_massive: bool, queries: int | None, seed: int
) -> Table:
    start = unit(centred(exact(trace.points[0])[tokens(trace, keep_massive)]))
    some = drawn_rows(len(start), queries, seed, start.device)
    means, errors, counts = zip(
        *(kernel(read, turned, start, least, some) for read in layers(trace, keep_massive, least=2)), strict=True
    )
    if not any(counts):
        raise RheoscopeError(
            f"agreement needs a query with at least {least} other keys that are not massive, and none of the "
            f"{len(start)} tokens has; type a longer text"
        )
    counted = torch.tensor(counts, dtype=torch.float64, device=start.device)
    return Table(torch.stack(means, 1), torch.stack(errors, 1), counted)


def _controlled(
    trace: Trace, control: Trace, least: int, keep_massive: bool, queries: int | None, seed: int
) -> Float[Tensor, "layer h 5"]:
    """All means of the heads of the control, which must have read the same tokens in as many layers and heads."""
    check_control(trace, control)
    return _table(control, None, least, keep_massive, queries, seed).means[0]


def kernel(
    read: Read, turned: Turned | None, start: Float[Tensor, "n d"], least: int, some: Int[Tensor, " m"] | None = None
) -> tuple[Float[Tensor, "c h 5"], Float[Tensor, "c h"], int]:
    """The five means of all heads of one layer (of `c` turns of its cloud), the error of the first, and how many queries they are over.

    `start` are the directions of the tokens' embeddings, `some` the queries that are looked at (all of them); NaN where no query
    has enough keys.
    """
    some = torch.arange(len(start), device=start.device) if some is None else some
    q, k = sides(read, turned)
    total, squares, count = summed(by_query(read, q, k, start, least, some), q)
    if not count:
        nothing = torch.full_like(total, float("nan"))
        return nothing, nothing[..., 0], 0
    mean = total / count
    error = (squares / count - mean[..., 0].square()).clamp(min=0) / max(count - 1, 1)
    return mean, (error * (1 - len(some) / len(start))).sqrt(), count


Blocks = Iterator[tuple[Int[Tensor, " rows"], Float[Tensor, "c h rows 5"]]]


def summed(blocks: Blocks, q: Float[Tensor, "c h n k"]) -> tuple[Float[Tensor, "c h 5"], Float[Tensor, "c h"], int]:
    """Sums over the queries of one layer, block after block, the sum of squares of the first, and their number."""
    total, count = torch.zeros(*q.shape[:2], 5, dtype=torch.float64, device=q.device), 0
    squares = torch.zeros_like(total[..., 0])
    for rows, found in blocks:
        total, squares = total + found.sum(2), squares + found[..., 0].square().sum(2)
        count += len(rows)
    return total, squares, count


def by_query(
    read: Read,
    q: Float[Tensor, "c h n k"],
    k: Float[Tensor, "c h n k"],
    start: Float[Tensor, "n d"],
    least: int,
    some: Int[Tensor, " m"],
) -> Blocks:
    """The five correlations of single queries, a block of those that have enough keys at a time."""
    cloud, at = centred(read.hat), read.at
    like, length = torch.stack([unit(cloud), unit(read.hat)]), cloud.norm(dim=-1)
    bare = Mechanism(read.heads.mechanism.score, position=read.heads.mechanism.position)
    for block in some.split(max(1, numbers_in_cache(q.device) // (q.shape[0] * q.shape[1] * len(at)))):
        usable = read.heads.mechanism.mask(at[block], at) & (at[block, None] != at)
        enough = usable.sum(-1) >= least
        rows, usable = block[enough], usable[enough]
        if not len(rows):
            continue
        to = int(usable.any(0).nonzero()[-1]) + 1  # under a causal mask nothing lies beyond
        usable, i, j = usable[:, :to], at[rows], at[:to]
        cosines = torch.stack([*(like[:, rows] @ like[:, :to].mT), start[rows] @ start[:to].mT])
        wanted = targets(cosines, (i[:, None] - j).abs(), length[:to], usable)
        s = scores(bare, q[:, :, rows], k[:, :, :to], i, j)
        yield rows, correlations(ranked(s, usable), wanted)


def sides(read: Read, turned: Turned | None) -> tuple[Float[Tensor, "c h n k"], Float[Tensor, "c h n k"]]:
    """Queries and keys of every head, in their places: the model's own, or those of clouds turned at random."""
    heads, at = read.heads, read.at
    if turned is None:
        q, k, _ = heads.read(read.x)
        q, k = q[:, :, at], k[:, :, at]
    else:
        asking, answering = (heads.norm.centre(read.hat @ Q.to(read.hat.dtype)) for Q in turned)
        q = through(heads.norm, asking, heads.W_Q, heads.b_Q, heads.q_norm)
        k = through(heads.norm, answering, heads.W_K, heads.b_K, heads.k_norm)
    place = heads.mechanism.position.place
    return place(exact(q), at), place(for_every_head(exact(k), heads.count), at)


def targets(
    cosines: Float[Tensor, "3 m n"],
    far: Float[Tensor, "m n"] | Tensor,
    length: Float[Tensor, " n"],
    usable: Bool[Tensor, "m n"],
) -> Float[Tensor, "m n 6"]:
    """Six unit rows for every query: the two that are partialled out (orthonormal), the raw cosine, three partial ones.

    A rank correlation with one of them is an inner product, so that all heads of a layer share this work.
    """
    ranks = ranked(torch.cat([cosines, far[None].to(cosines.dtype), length.expand_as(usable)[None]]), usable)
    far, length = unit(ranks[3]), ranks[4]
    length = unit(_without(length, far))
    partial = unit(_without(_without(ranks[:3], far), length))
    return torch.stack([far, length, unit(ranks[0]), *partial], -1)


def correlations(ranks: Float[Tensor, "c h m n"], wanted: Float[Tensor, "m n 6"]) -> Float[Tensor, "c h m 5"]:
    """The five correlations of MEANS for every query; 0 where something does not vary."""
    along = torch.einsum("chmn,mnt->chmt", ranks, wanted)
    whole = ranks.square().sum(-1)
    rest = whole - along[..., :2].square().sum(-1)
    partial = along[..., 3:] / _or_infinite(rest, whole).sqrt()[..., None]
    raw = along[..., [2, 0]] / _or_infinite(whole, whole).sqrt()[..., None]
    return torch.stack([partial[..., 0], raw[..., 0], partial[..., 1], partial[..., 2], -raw[..., 1]], -1)


def _or_infinite(square: Tensor, whole: Tensor) -> Tensor:
    """A squared length; infinite where it is 0 but for rounding, so that what is divided by it is 0."""
    return torch.where(square > 1e-9 * whole, square, float("inf"))


def _without(x: Float[Tensor, "*t m n"], along: Float[Tensor, "m n"]) -> Float[Tensor, "*t m n"]:
    """x less its part along unit rows."""
    return x - (x * along).sum(-1, keepdim=True) * along


def centred(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    return x - x.mean(0)


def unit(x: Float[Tensor, "*t n d"]) -> Float[Tensor, "*t n d"]:
    """Rows of length 1; 0 where a row is 0 but for rounding, beside the longest."""
    length = x.norm(dim=-1, keepdim=True)
    return torch.where(length > 1e-6 * length.max(), x / torch.where(length > 0, length, 1), 0)


def _values(
    own: Table,
    null: list[Float[Tensor, "_ layer h"]],
    beside: Float[Tensor, "layer h 5"] | None,
) -> dict[str, Tensor]:
    table = own.means[0]
    values = dict(zip(MEANS, table.unbind(-1), strict=True)) | {"queries": own.queries}
    values |= {"agreement_error": own.error[0]} if bool((own.error > 0).any()) else {}
    if beside is not None:
        values |= {f"{name}_untrained": beside[..., MEANS.index(name)] for name in CONTROLLED}
    values["mean_agreement"] = table[..., 0].nanmean()
    if null:
        drawn = torch.cat(null)
        mean, sd, p = drawn.mean(0), drawn.std(0), pooled_p(table[..., 0], drawn)
        z = z_scores(table[..., 0], mean, sd)
        values |= {"null_mean": mean, "null_sd": sd, "z": z, "p_value": p, "q_value": q_values(p)}
        values["mean_agreement_drawn"] = drawn.flatten(1).nanmean(-1)
    return values


OF_HEAD = ("layer", "head")
AGREEMENT = Analysis(
    name="agreement",
    question="Does each head attend to what is similar in the space it reads?",
    ask=agreement,
    needs="trace",
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
