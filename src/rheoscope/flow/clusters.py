"""Does the cloud gather? Cosines, ranks, intrinsic dimension, clusters at a fixed angle, and how they pass into each other."""

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.flow.cloud import clouds
from rheoscope.flow.kept import distances
from rheoscope.shapes import RheoscopeError
from rheoscope.space.dataset import dataset
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

DEFINITIONS = {
    "mean_cosine": "mean cosine of all pairs of tokens, the cloud's mean taken away: about 0 for a cloud without direction",
    "mean_cosine_uncentred": "mean cosine of all pairs of tokens as they are: 1 where all point the same way",
    "effective_rank": "exp of the entropy of σ²/Σσ², σ the singular values of the centred cloud: directions in use",
    "effective_rank_null": "the same with every coordinate shuffled among the tokens: what they alone give; depends on the basis of E",
    "effective_rank_null_sd": "standard deviation of that over the shuffles; depends on the basis of E",
    "participation_ratio": "(Σσ²)²/Σσ⁴ of the centred cloud: directions in use, the large ones counting more",
    "participation_ratio_null": "mean of the same with every coordinate shuffled among the tokens; depends on the basis of E",
    "intrinsic_dimension": "TwoNN: (n − 1)/Σ log(r₂/r₁), r₁ and r₂ the distances to the two nearest tokens, equal points once",
    "intrinsic_dimension_null": "the same with every coordinate shuffled among the tokens, once; depends on the basis of E",
    "cluster_count": "groups of tokens that chains of steps below the angle hold together (single linkage, centred directions)",
    "cluster_count_null": "mean of the same with every coordinate shuffled among the tokens; depends on the basis of E",
    "cluster_count_null_sd": "standard deviation of that over the shuffles; depends on the basis of E",
    "silhouette": "mean of (b − a)/max(a, b): a to the own cluster, b to the nearest other, cosine distance; 0 without two clusters",
    "label": "which cluster a token is in, named by its first token",
    "lineage": "the same with names that last: a cluster keeps the name of the earlier one that it shares most tokens with",
    "ari": "adjusted Rand index of the clusters before and after a step: 1 the same, about 0 unrelated",
    "nmi": "mutual information of the clusters before and after a step over the mean of their entropies: 1 the same, 0 unrelated",
}


@torch.no_grad()
def clusters(
    trace: Trace,
    space: str = "raw",
    grain: str = "layer",
    angle: float = math.pi / 4,
    draws: int = 4,
    seed: int = 0,
    keep_massive: bool = False,
) -> "xarray.Dataset":
    """Do tokens gather into clusters, layer by layer, and in how many directions does the cloud still spread?

    **Formula** each field's is in its `attrs["definition"]`. Two tokens are linked where the angle between their centred
    directions is at most `angle` (radians); clusters are what links hold together.

    **Gives** (point): `mean_cosine`, `mean_cosine_uncentred`, `effective_rank`, `participation_ratio`,
    `intrinsic_dimension`, `cluster_count`, `silhouette`, nulls where the definition has one; (point, token): `label`,
    `lineage` (the alluvial map: how many tokens pass from which cluster to which); (step): `ari`, `nmi`.

    **Laws** 1 ≤ participation ratio ≤ effective rank ≤ min(n − 1, d); unchanged by a turn, a shift (but for the uncentred
    cosine) and a scale of the cloud; more clusters at smaller angles.

    **Siblings** `density_clusters` finds clusters by HDBSCAN; `purity` asks what clusters are made of; `massive` names the
    tokens that are left out.

    **Source** Roy and Vetterli 2007 (effective rank), Facco et al. 2017 (TwoNN), Hubert and Arabie 1985 (ARI).

    >>> import rheoscope as rs
    >>> found = rs.clusters(rs.load().trace("The keys to the cabinet are on the table in the hall"))
    >>> bool((found.participation_ratio <= found.effective_rank + 1e-6).all())
    True
    """
    if draws < 2:
        raise RheoscopeError(f"a null needs 2 draws or more, got {draws}; type draws=4")
    if not 0 < angle < math.pi:
        raise RheoscopeError(f"the angle of a link lies between 0 and π, got {angle}; type angle=0.785")
    seen = clouds(trace, space, grain, keep_massive, least=3)
    points = seen.points.double()
    orders = [dealt(points[0].shape, seed + draw) for draw in range(draws)]
    rows = [of_cloud(x, angle, orders) for x in points]
    labels = torch.stack([row.pop("label") for row in rows])
    values: dict[str, tuple[tuple[str, ...], Tensor]] = {
        name: (("point",), torch.stack([row[name] for row in rows])) for name in rows[0]
    }
    values["label"] = (("point", "token"), labels)
    values["lineage"] = (("point", "token"), lineage(labels))
    values["ari"] = (("step",), torch.stack([rand_index(a, b) for a, b in pairwise(labels)]))
    values["nmi"] = (("step",), torch.stack([mutual_information(a, b) for a, b in pairwise(labels)]))
    coords = {
        "point": list(seen.steps),
        "token": seen.kept,
        "word": ("token", seen.tokens),
        "step": list(seen.steps[1:]),
    }
    return dataset(
        values,
        DEFINITIONS,
        coords,
        {"analysis": "clusters", "angle": angle, "draws": draws, "seed": seed} | seen.attributes,
    )


def of_cloud(x: Float[Tensor, "n d"], angle: float, orders: list[Int[Tensor, "n d"]]) -> dict[str, Tensor]:
    """All numbers of one cloud; the same shuffles serve every cloud of a text, dealing them is the dear part."""
    size = x.norm(dim=-1).amax()
    centred, *nulls = (_still(y - y.mean(0), size) for y in (x, *(x.gather(0, order) for order in orders)))
    cosine = cosines(centred)
    label, (rank, participation) = linked(cosine, angle), ranks(centred)
    spread, participations = torch.stack([torch.stack(ranks(null.float())) for null in nulls]).double().unbind(-1)
    counts = torch.tensor([len(linked(cosines(null), angle).unique()) for null in nulls], dtype=x.dtype)
    return {
        "mean_cosine": mean_of_pairs(cosine),
        "mean_cosine_uncentred": mean_of_pairs(cosines(x)),
        "effective_rank": rank,
        "effective_rank_null": spread.mean(),
        "effective_rank_null_sd": spread.std(),
        "participation_ratio": participation,
        "participation_ratio_null": participations.mean(),
        "intrinsic_dimension": two_nearest(x),
        "intrinsic_dimension_null": two_nearest(nulls[0]),
        "cluster_count": torch.tensor(len(label.unique())),
        "cluster_count_null": counts.mean(),
        "cluster_count_null_sd": counts.std(),
        "silhouette": silhouette(1 - cosine, label),
        "label": label,
    }


def cosines(x: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """Of all pairs; a token at the origin is like another one there and like no other."""
    length = x.norm(dim=-1, keepdim=True)
    still = length == 0
    unit = torch.where(still, 0, x / torch.where(still, 1, length))
    return torch.where(still & still.mT, 1, (unit @ unit.mT).clamp(-1, 1))


def _still(centred: Float[Tensor, "n d"], size: Float[Tensor, ""]) -> Float[Tensor, "n d"]:
    """Tokens that stand at the mean but for rounding, put there."""
    return torch.where(centred.norm(dim=-1, keepdim=True) <= 1e-12 * size, 0, centred)


def mean_of_pairs(table: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    n = len(table)
    return (table.sum() - table.diagonal().sum()) / (n * (n - 1))


def ranks(centred: Float[Tensor, "n d"]) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Effective rank and participation ratio; 0 for a cloud of one point."""
    n, d = centred.shape
    variance = torch.linalg.eigvalsh(centred @ centred.mT if n <= d else centred.mT @ centred).clamp(min=0)
    total = variance.sum()
    if float(total) == 0:
        return torch.zeros((), dtype=total.dtype), torch.zeros((), dtype=total.dtype)
    p = variance / total
    return torch.special.entr(p).sum().exp(), 1 / p.square().sum()


def two_nearest(x: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """The TwoNN estimate on points that differ; NaN with fewer than 3 of them."""
    far = distances(x)
    distinct = ~(far == 0).tril(-1).any(-1)
    if int(distinct.sum()) < 3:
        return torch.tensor(float("nan"), dtype=x.dtype)
    near = far[distinct][:, distinct].topk(3, largest=False).values  # itself first
    logs = (near[:, 2] / near[:, 1]).log()
    return (len(near) - 1) / logs.sum() if float(logs.sum()) > 0 else torch.tensor(float("inf"), dtype=x.dtype)


def linked(cosine: Float[Tensor, "n n"], angle: float) -> Int[Tensor, " n"]:
    """Components of the graph of near pairs, each named by its first token: labels flow along links until none changes."""
    near = (cosine >= math.cos(angle)) | torch.eye(len(cosine), dtype=torch.bool)
    label = torch.arange(len(cosine))
    while True:
        least = torch.where(near, label, len(label)).amin(-1)
        least = least[least]  # jump on: chains of n links need log n rounds
        if torch.equal(least, label):
            return label
        label = least


def silhouette(distance: Float[Tensor, "n n"], label: Int[Tensor, " n"]) -> Float[Tensor, ""]:
    """Rousseeuw's mean silhouette; a token alone in its cluster counts 0, and so does everything with fewer than 2."""
    names = label.unique()
    if len(names) < 2:
        return torch.zeros((), dtype=distance.dtype)
    member = (label[:, None] == names).to(distance.dtype)
    sizes, sums = member.sum(0), distance @ member
    own = (sums * member).sum(-1) / ((sizes * member).sum(-1) - 1).clamp(min=1)
    other = torch.where(member.bool(), float("inf"), sums / sizes).amin(-1)
    score = (other - own) / torch.maximum(other, own).clamp(min=1e-30)
    return torch.where((sizes * member).sum(-1) > 1, score, 0).mean()


def rand_index(a: Int[Tensor, " n"], b: Int[Tensor, " n"]) -> Float[Tensor, ""]:
    """Hubert and Arabie's adjusted Rand index; 1 where both put everything together, or everything apart."""
    n = len(a)
    pair = torch.stack([a, b]).unique(dim=1, return_counts=True)[1].double()
    rows, columns = (x.unique(return_counts=True)[1].double() for x in (a, b))
    together, of_a, of_b = ((x * (x - 1) / 2).sum() for x in (pair, rows, columns))
    expected, most = of_a * of_b / (n * (n - 1) / 2), (of_a + of_b) / 2
    return torch.where(most == expected, 1, (together - expected) / torch.where(most == expected, 1, most - expected))


def mutual_information(a: Int[Tensor, " n"], b: Int[Tensor, " n"]) -> Float[Tensor, ""]:
    """I(a; b) over the mean of H(a) and H(b); 1 where both put everything together."""
    whole, of_a, of_b = (_entropy(x) for x in (torch.stack([a, b]), a[None], b[None]))
    mean = (of_a + of_b) / 2
    return torch.where(mean > 0, (of_a + of_b - whole) / torch.where(mean > 0, mean, 1), 1).clamp(0, 1)


def _entropy(labels: Int[Tensor, "k n"]) -> Float[Tensor, ""]:
    share = labels.unique(dim=1, return_counts=True)[1].double() / labels.shape[1]
    return torch.special.entr(share).sum()


def lineage(labels: Int[Tensor, "p n"]) -> Int[Tensor, "p n"]:
    """Names that last from cloud to cloud: largest overlap first, a name goes on once; the others get new names.

    >>> lineage(torch.tensor([[0, 0, 0, 3, 3], [0, 1, 1, 3, 3]])).tolist()
    [[0, 0, 0, 1, 1], [2, 0, 0, 1, 1]]
    """
    told = [labels[0].unique(return_inverse=True)[1]]
    following = int(told[0].max()) + 1
    for label in labels[1:]:
        pairs, sizes = torch.stack([told[-1], label]).unique(dim=1, return_counts=True)
        names: dict[int, int] = {}
        for at in sizes.argsort(descending=True, stable=True).tolist():
            before, now = pairs[:, at].tolist()
            if now not in names and before not in names.values():
                names[now] = before
        for now in label.unique().tolist():
            if now not in names:
                names[now], following = following, following + 1
        told.append(torch.tensor([names[now] for now in label.tolist()]))
    return torch.stack(told)


def shuffle(x: Float[Tensor, "n d"], seed: int) -> Float[Tensor, "n d"]:
    """Every coordinate dealt out among the tokens anew."""
    return x.gather(0, dealt(x.shape, seed))


def dealt(shape: torch.Size, seed: int) -> Int[Tensor, "n d"]:
    """For every coordinate an order of the tokens."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)).argsort(0)
