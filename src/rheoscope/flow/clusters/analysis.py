"""Does the cloud gather? Cosines, ranks, intrinsic dimension, clusters at a fixed angle, and how they pass into each other."""

import math
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.lower.block_size import numbers_at_once, numbers_in_cache
from rheoscope.flow.cloud import clouds, of_types, placed, points_of
from rheoscope.flow.clusters.concentration import gathered
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.pair_distances import cosines, distances
from rheoscope.space.single_linkage import linked
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces

if TYPE_CHECKING:
    import xarray


@torch.no_grad()
def clusters(
    trace: Trace,
    space: str = "raw",
    grain: str = "layer",
    angle: float = math.pi / 4,
    draws: int = 2,
    seed: int = 0,
    keep_massive: bool = False,
) -> "xarray.Dataset":
    """Do tokens gather into clusters, layer by layer, and in how many directions does the cloud still spread?

    **Formula** each field's is in its `attrs["definition"]`. Two tokens are linked where the angle between their centred
    directions is at most `angle` (radians); clusters are what links hold together. Tokens of one type start at one point and gather
    for that alone, so what is said of gathering is said of types: one point each, the mean of its occurrences.

    **Gives** (point): `mean_cosine`, `mean_cosine_uncentred`, `effective_rank`, `participation_ratio`,
    `intrinsic_dimension`, `cluster_count`, `silhouette`, nulls where the definition has one; (point, token): `label`,
    `lineage` (the alluvial map: how many tokens pass from which cluster to which); (step): `ari`, `nmi`. Of types: `type_count`;
    (point): `type_cluster_count`, `type_effective_rank`, `type_flow` ("gathers" where there are fewer clusters than in the
    embedding, "separates" where there are more, else "keeps"); (point, type): `type_label`.

    **Laws** 1 ≤ participation ratio ≤ effective rank ≤ min(n − 1, d); unchanged by a turn, a shift (but for the uncentred
    cosine) and a scale of the cloud; more clusters at smaller angles; tokens told twice change no number of types.

    **Limits** shuffled coordinates are no model's: what an untrained model of the same architecture shows too
    (`rs.load(name, untrained=True)`) is the architecture's doing.

    **Siblings** `density_clusters` finds clusters by HDBSCAN; `purity` asks what clusters are made of; `massive` names the
    tokens that are left out.

    **Source** Roy and Vetterli 2007 (effective rank), Facco et al. 2017 (TwoNN), Hubert and Arabie 1985 (ARI).

    >>> import rheoscope as rs
    >>> found = rs.clusters(rs.load().trace("The keys to the cabinet are on the table in the hall"))
    >>> bool((found.participation_ratio <= found.effective_rank + 1e-6).all())
    True
    """
    if draws < 0 or draws == 1:
        raise RheoscopeError(f"a null needs 2 draws or more, got {draws}; type draws=2, or draws=0 for no null")
    if not 0 < angle < math.pi:
        raise RheoscopeError(f"the angle of a link lies between 0 and π, got {angle}; type angle=0.785")
    seen = clouds(trace, space, grain, keep_massive, least=3)
    coords = {
        "point": list(seen.steps),
        "token": seen.tokens,
        "word": ("token", seen.words),
        "step": list(seen.steps[1:]),
        "type": seen.type_words,
    }
    attributes = {"angle": angle, "draws": draws, "seed": seed} | seen.attributes
    return CLUSTERS.answer(kernel(seen, seen.types, angle, draws, seed), coords, attributes)


@torch.no_grad()
def batch(traces: Traces, space: str = "raw", grain: str = "layer", keep_massive: bool = False) -> dict[str, Tensor]:
    """Mean cosines and participation ratio of many texts at once: what needs neither eigenvalues nor clusters, nor a draw."""
    there, view = traces.counted(keep_massive, least=3), traces.view
    half = view.as_read(traces.points[:0]).dtype.itemsize < 4
    dtypes = (torch.float32, view.dtype) if half else (torch.float64, torch.float64)
    every = slice(None, None, points_of(traces, grain)[1])  # points of a grain are equally far apart, the first is 0
    points, norms = (x.transpose(0, 1)[every] for x in (traces.points, traces.norms))
    each = points[0].numel() * (points.shape[-2] // points.shape[-1] + 1)
    at_once = numbers_in_cache(points.device) if points.device.type == "cpu" else numbers_at_once(points.device)
    some = max(1, min(at_once // each, -(-len(points) // PARTS)))
    clouds = (placed(view, x, space).to(dtypes[0]) for x in points.split(some))
    if space == "raw":
        return gathered(clouds, norms.to(dtypes[0]), there, dtypes[1])
    seen = list(clouds)
    return gathered(seen, torch.cat([x.norm(dim=-1) for x in seen]), there, dtypes[1])


def kernel(
    clouds: Iterable[Float[Tensor, "n d"]], types: Int[Tensor, " n"], angle: float, draws: int, seed: int
) -> dict[str, Any]:
    """All numbers of clouds of the same tokens, one after the other: they need not all be held."""
    rows, nulls = [], []
    for at, x in enumerate(clouds):
        centred = still(x.double())
        row = of_cloud(centred, angle) | {"mean_cosine_uncentred": mean_cosine(x)}
        rows.append(row | of_type_cloud(still(of_types(x, types)), angle))
        nulls.append(of_null(centred, at, angle, draws, seed))
    found = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    labels = found["label"]
    found |= of_nulls(torch.stack(nulls)) if draws else {}
    return found | {
        "type_count": types.max() + 1,
        "type_flow": flow(found["type_cluster_count"]),
        "lineage": lineage(labels.cpu()).to(labels.device),  # name by name: a GPU would be asked for each
        "ari": torch.stack([rand_index(a, b) for a, b in pairwise(labels)]),
        "nmi": torch.stack([mutual_information(a, b) for a, b in pairwise(labels)]),
    }


def of_cloud(centred: Float[Tensor, "n d"], angle: float) -> dict[str, Tensor]:
    """All numbers of one cloud around its mean."""
    inner = centred @ centred.mT
    cosine, (rank, participation) = cosines(inner), ranks(centred, inner)
    label = linked(cosine, angle)
    return {
        "mean_cosine": mean_of_pairs(cosine),
        "effective_rank": rank,
        "participation_ratio": participation,
        "intrinsic_dimension": two_nearest(inner),
        "cluster_count": torch.tensor(len(label.unique()), device=label.device),
        "silhouette": silhouette(1 - cosine, label),
        "label": label,
    }


def of_type_cloud(centred: Float[Tensor, "t d"], angle: float) -> dict[str, Tensor]:
    """Clusters and rank of one point a type."""
    inner = centred @ centred.mT
    label = linked(cosines(inner), angle)
    return {
        "type_label": label,
        "type_cluster_count": torch.tensor(len(label.unique()), device=label.device),
        "type_effective_rank": ranks(centred, inner)[0],
    }


def flow(counts: Int[Tensor, " p"]) -> list[str]:
    """Which way the flow has gone from the first cloud on: fewer clusters, more, or as many.

    >>> flow(torch.tensor([5, 7, 5, 2]))
    ['keeps', 'separates', 'keeps', 'gathers']
    """
    way = {-1: "gathers", 0: "keeps", 1: "separates"}
    return [way[sign] for sign in (counts - counts[0]).sign().tolist()]


def of_null(centred: Float[Tensor, "n d"], at: int, angle: float, draws: int, seed: int) -> Float[Tensor, "draw 4"]:
    """Both ranks, intrinsic dimension and number of clusters of shuffles of the cloud at one point."""
    found = []
    columns = centred.mT.float().contiguous()  # float32: a null is known to a few digits anyway
    for draw in range(draws):
        order = dealt(len(centred), centred.shape[1], seed + draw, at).to(columns.device)
        y = columns.gather(-1, order).mT  # coordinates keep their means
        inner = y @ y.mT
        count = torch.tensor(len(linked(cosines(inner), angle).unique()), device=y.device)
        found.append(torch.stack([*ranks(y, inner), two_nearest(inner), count]))
    return torch.stack(found).double() if found else centred.new_empty(0, 4)


def of_nulls(drawn: Float[Tensor, "p draw 4"]) -> dict[str, Float[Tensor, " p"]]:
    """Means of shuffled clouds. Their spread is nearly the same share of them at all points, so all points tell it together."""
    rank, participation, dimension, count = drawn.mean(1).unbind(-1)
    spread = (drawn.var(1) / drawn.mean(1).square().clamp(min=1e-30)).mean(0).sqrt()
    return {
        "effective_rank_null": rank,
        "effective_rank_null_sd": rank * spread[0],
        "participation_ratio_null": participation,
        "intrinsic_dimension_null": dimension,
        "cluster_count_null": count,
        "cluster_count_null_sd": count * spread[3],
    }


def still(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """The cloud around its mean; tokens that stand there but for rounding are put there."""
    centred = x - x.mean(0)
    return torch.where(centred.norm(dim=-1, keepdim=True) <= 1e-12 * x.norm(dim=-1).amax(), 0, centred)


def mean_of_pairs(table: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    n = len(table)
    return (table.sum() - table.diagonal().sum()) / (n * (n - 1))


def mean_cosine(x: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """Mean cosine of all pairs of points as they are, from the sum of their directions; two at the origin are alike."""
    length = x.norm(dim=-1, keepdim=True)
    moving = int((length > 0).sum())
    together = (x / torch.where(length > 0, length, 1)).sum(0).square().sum()
    still = len(x) - moving
    return (together - moving + still * (still - 1)) / (len(x) * (len(x) - 1))


def ranks(centred: Float[Tensor, "n d"], inner: Float[Tensor, "n n"]) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Effective rank and participation ratio, by the smaller of two tables; 0 for a cloud of one point."""
    n, d = centred.shape
    # float64: of a text that repeats itself many eigenvalues are equal, and LAPACK's float32 may not find them
    variance = torch.linalg.eigvalsh((inner if n <= d else centred.mT @ centred).double()).clamp(min=0)
    total = variance.sum()
    if float(total) == 0:
        return torch.zeros_like(total), torch.zeros_like(total)
    p = variance / total
    return torch.special.entr(p).sum().exp(), 1 / p.square().sum()


def two_nearest(inner: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    """The TwoNN estimate on points that differ; NaN with fewer than 3 of them."""
    far = distances(inner)
    distinct = ~(far == 0).tril(-1).any(-1)
    far = far if bool(distinct.all()) else far[distinct][:, distinct]
    if len(far) < 3:
        return inner.new_tensor(float("nan"))
    near = far.topk(3, largest=False).values  # itself first
    logs = (near[:, 2] / near[:, 1]).log().sum()
    return (len(near) - 1) / logs if float(logs) > 0 else inner.new_tensor(float("inf"))


def silhouette(distance: Float[Tensor, "n n"], label: Int[Tensor, " n"]) -> Float[Tensor, ""]:
    """Rousseeuw's mean silhouette; a token alone in its cluster counts 0, and so does everything with fewer than 2.

    By hand: 3 times as fast as scikit-learn's on 20 tokens, 13 times on 1024 (benchmarks/clusterings.py), on any device.
    """
    names, at, sizes = label.unique(return_inverse=True, return_counts=True)
    if len(names) < 2:
        return distance.new_zeros(())
    sums = distance.new_zeros(len(label), len(names)).index_add_(1, at, distance)
    own = sums.gather(1, at[:, None])[:, 0] / (sizes[at] - 1).clamp(min=1)
    other = (sums / sizes).scatter(1, at[:, None], float("inf")).amin(-1)
    score = (other - own) / torch.maximum(other, own).clamp(min=1e-30)
    return torch.where(sizes[at] > 1, score, 0).mean()


def rand_index(a: Int[Tensor, " n"], b: Int[Tensor, " n"]) -> Float[Tensor, ""]:
    """Hubert and Arabie's adjusted Rand index; 1 where both put everything together, or everything apart.

    By hand, as `mutual_information`: 3.5 and 5 times as fast as scikit-learn's on 20 to 1024 tokens (benchmarks/clusterings.py),
    without the seconds that its import takes, on any device.
    """
    n = len(a)
    together, of_a, of_b = ((x * (x - 1) / 2).sum() for x in map(_sizes, (_both(a, b), a, b)))
    expected, most = of_a * of_b / (n * (n - 1) / 2), (of_a + of_b) / 2
    return torch.where(most == expected, 1, (together - expected) / torch.where(most == expected, 1, most - expected))


def mutual_information(a: Int[Tensor, " n"], b: Int[Tensor, " n"]) -> Float[Tensor, ""]:
    """I(a; b) over the mean of H(a) and H(b); 1 where both put everything together."""
    whole, of_a, of_b = (torch.special.entr(_sizes(x) / len(a)).sum() for x in (_both(a, b), a, b))
    mean = (of_a + of_b) / 2
    return torch.where(mean > 0, (of_a + of_b - whole) / torch.where(mean > 0, mean, 1), 1).clamp(0, 1)


def _both(a: Int[Tensor, " n"], b: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """One number for the pair of labels."""
    return a * (int(b.max()) + 1) + b


def _sizes(label: Int[Tensor, " n"]) -> Float[Tensor, " clusters"]:
    return label.unique(return_counts=True)[1].double()


def lineage(labels: Int[Tensor, "p n"]) -> Int[Tensor, "p n"]:
    """Names that last from cloud to cloud: largest overlap first, a name goes on once; the others get new names.

    >>> lineage(torch.tensor([[0, 0, 0, 3, 3], [0, 1, 1, 3, 3]])).tolist()
    [[0, 0, 0, 1, 1], [2, 0, 0, 1, 1]]
    """
    told = [labels[0].unique(return_inverse=True)[1]]
    following = int(told[0].max()) + 1
    for label in labels[1:]:
        base = int(label.max()) + 1
        pairs, sizes = _both(told[-1], label).unique(return_counts=True)
        names: dict[int, int] = {}
        for at in sizes.argsort(descending=True, stable=True).tolist():
            before, now = divmod(int(pairs[at]), base)
            if now not in names and before not in names.values():
                names[now] = before
        for now in label.unique().tolist():
            if now not in names:
                names[now], following = following, following + 1
        told.append(torch.tensor([names[now] for now in label.tolist()], device=label.device))
    return torch.stack(told)


def shuffle(x: Float[Tensor, "n d"], seed: int, at: int = 0) -> Float[Tensor, "n d"]:
    """Every coordinate dealt out among the tokens anew."""
    return x.gather(0, dealt(len(x), x.shape[1], seed, at).mT.to(x.device))


def dealt(n: int, d: int, seed: int, at: int = 0) -> Int[Tensor, "d n"]:
    """For every coordinate an order of the tokens. Another `at` gives the orders to other coordinates: dealing is dear."""
    return _orders(n, d, seed).roll(at, 0)


@lru_cache(maxsize=4)
def _orders(n: int, d: int, seed: int) -> Int[Tensor, "d n"]:
    return torch.rand(d, n, generator=torch.Generator().manual_seed(seed)).argsort(-1)


PARTS = 8
"""Parts in which a GPU is given the points of a batch: few launches, and an eighth of the points is held again."""
_SHUFFLED = "with every coordinate shuffled among the tokens"

CLUSTERS = Analysis(
    name="clusters",
    question="Do tokens gather into clusters, and in how many directions does the cloud still spread?",
    ask=clusters,
    batch=batch,
    needs="trace",
    fields={
        "mean_cosine": Field(
            ("point",),
            "mean cosine of all pairs of tokens, the cloud's mean taken away: about 0 for a cloud without direction",
        ),
        "mean_cosine_uncentred": Field(
            ("point",), "mean cosine of all pairs of tokens as they are: 1 where all point the same way"
        ),
        "effective_rank": Field(
            ("point",),
            "exp of the entropy of σ²/Σσ², σ the singular values of the centred cloud: directions in use",
            null="effective_rank_null",
            null_sd="effective_rank_null_sd",
        ),
        "effective_rank_null": Field(("point",), f"the same {_SHUFFLED}: what they alone give", basis=True),
        "effective_rank_null_sd": Field(
            ("point",),
            "standard deviation of that over the shuffles, as a share of the null the same for all points",
            basis=True,
        ),
        "participation_ratio": Field(
            ("point",),
            "(Σσ²)²/Σσ⁴ of the centred cloud: directions in use, the large ones counting more",
            null="participation_ratio_null",
        ),
        "participation_ratio_null": Field(("point",), f"mean of the same {_SHUFFLED}", basis=True),
        "intrinsic_dimension": Field(
            ("point",),
            "TwoNN: (n − 1)/Σ log(r₂/r₁), r₁ and r₂ the distances to the two nearest tokens, equal points once",
            null="intrinsic_dimension_null",
        ),
        "intrinsic_dimension_null": Field(("point",), f"mean of the same {_SHUFFLED}", basis=True),
        "cluster_count": Field(
            ("point",),
            "groups of tokens that chains of steps below the angle hold together (single linkage, centred directions)",
            null="cluster_count_null",
            null_sd="cluster_count_null_sd",
        ),
        "cluster_count_null": Field(("point",), f"mean of the same {_SHUFFLED}", basis=True),
        "cluster_count_null_sd": Field(
            ("point",),
            "standard deviation of that over the shuffles, as a share of the null the same for all points",
            basis=True,
        ),
        "silhouette": Field(
            ("point",),
            "mean of (b − a)/max(a, b): a to the own cluster, b to the nearest other, cosine distance; 0 without two clusters",
        ),
        "type_count": Field((), "number of token types: ids that occur among the tokens"),
        "type_cluster_count": Field(
            ("point",),
            "groups of types, one point each, the mean of its occurrences, that chains of steps below the angle hold together",
        ),
        "type_effective_rank": Field(
            ("point",), "effective rank of the cloud with one point a type: exp of the entropy of σ²/Σσ²"
        ),
        "type_flow": Field(
            ("point",),
            "gathers: fewer clusters of types than in the embedding; separates: more; keeps: as many",
        ),
        "type_label": Field(("point", "type"), "which cluster a type is in, named by its first type", names=True),
        "label": Field(("point", "token"), "which cluster a token is in, named by its first token", names=True),
        "lineage": Field(
            ("point", "token"),
            "the same with names that last: a cluster keeps the name of the earlier one that it shares most tokens with",
            names=True,
        ),
        "ari": Field(
            ("step",), "adjusted Rand index of the clusters before and after a step: 1 the same, about 0 unrelated"
        ),
        "nmi": Field(
            ("step",),
            "mutual information of the clusters before and after a step over the mean of their entropies: 1 the same, 0 unrelated",
        ),
    },
)
