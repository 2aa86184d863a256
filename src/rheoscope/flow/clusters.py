"""Does the cloud gather? Cosines, ranks, intrinsic dimension, clusters at a fixed angle, and how they pass into each other."""

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.flow.cloud import clouds, dataset
from rheoscope.flow.kept import distances
from rheoscope.shapes import RheoscopeError
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

DEFINITIONS = {
    "mean_cosine": "mean cosine of all pairs of tokens, the cloud's mean taken away: about 0 for a cloud without direction",
    "mean_cosine_uncentred": "mean cosine of all pairs of tokens as they are: 1 where all point the same way",
    "effective_rank": "exp of the entropy of σ²/Σσ², σ the singular values of the centred cloud: directions in use",
    "effective_rank_null": "the same with every coordinate shuffled among the tokens: what its coordinates alone would give",
    "participation_ratio": "(Σσ²)²/Σσ⁴ of the centred cloud: directions in use, the large ones counting more",
    "participation_ratio_null": "the same with every coordinate shuffled among the tokens",
    "intrinsic_dimension": "TwoNN: (n − 1)/Σ log(r₂/r₁), r₁ and r₂ the distances to the two nearest tokens, equal points once",
    "intrinsic_dimension_null": "the same with every coordinate shuffled among the tokens",
    "cluster_count": "groups of tokens that chains of steps below the angle hold together (single linkage, centred directions)",
    "cluster_count_null": "the same with every coordinate shuffled among the tokens",
    "silhouette": "mean of (b − a)/max(a, b): a to the own cluster, b to the nearest other, cosine distance; 0 without two clusters",
    "label": "which cluster a token is in, named by its first token",
    "ari": "adjusted Rand index of the clusters before and after a step: 1 the same, about 0 unrelated",
}


@torch.no_grad()
def clusters(
    trace: Trace,
    space: str = "raw",
    grain: str = "layer",
    angle: float = math.pi / 4,
    seed: int = 0,
    keep_massive: bool = False,
) -> "xarray.Dataset":
    """Do tokens gather into clusters, layer by layer, and in how many directions does the cloud still spread?

    **Formula** each field's is in its `attrs["definition"]`. Two tokens are linked where the angle between their centred
    directions is at most `angle` (radians); clusters are what links hold together.

    **Gives** (point): `mean_cosine`, `mean_cosine_uncentred`, `effective_rank`, `participation_ratio`,
    `intrinsic_dimension`, `cluster_count`, `silhouette`, nulls where the definition has one; (point, token): `label`;
    (step): `ari`.

    **Laws** 1 ≤ participation ratio ≤ effective rank ≤ min(n − 1, d); unchanged by a turn, a shift (but for the uncentred
    cosine) and a scale of the cloud; more clusters at smaller angles.

    **Source** Roy and Vetterli 2007 (effective rank), Facco et al. 2017 (TwoNN), Hubert and Arabie 1985 (ARI).

    >>> import rheoscope as rs
    >>> found = rs.clusters(rs.load().trace("The keys to the cabinet are on the table in the hall"))
    >>> bool((found.participation_ratio <= found.effective_rank + 1e-6).all())
    True
    """
    if not 0 < angle < math.pi:
        raise RheoscopeError(f"the angle of a link lies between 0 and π, got {angle}; type angle=0.785")
    seen = clouds(trace, space, grain, keep_massive, least=3)
    rows = [of_cloud(x, angle, seed) for x in seen.points.double()]
    labels = torch.stack([row.pop("label") for row in rows])
    values: dict[str, tuple[tuple[str, ...], Tensor]] = {
        name: (("point",), torch.stack([row[name] for row in rows])) for name in rows[0]
    }
    values["label"] = (("point", "token"), labels)
    values["ari"] = (("step",), torch.stack([rand_index(a, b) for a, b in pairwise(labels)]))
    coords = {
        "point": list(seen.steps),
        "token": seen.kept,
        "word": ("token", seen.tokens),
        "step": list(seen.steps[1:]),
    }
    return dataset(
        values, DEFINITIONS, coords, {"analysis": "clusters", "angle": angle, "seed": seed} | seen.attributes
    )


def of_cloud(x: Float[Tensor, "n d"], angle: float, seed: int) -> dict[str, Tensor]:
    """All numbers of one cloud."""
    size, shuffled = x.norm(dim=-1).amax(), shuffle(x, seed)
    centred, shuffled = (_still(y - y.mean(0), size) for y in (x, shuffled))
    cosine = cosines(centred)
    label = linked(cosine, angle)
    (rank, participation), (rank_null, participation_null) = ranks(centred), ranks(shuffled)
    return {
        "mean_cosine": mean_of_pairs(cosine),
        "mean_cosine_uncentred": mean_of_pairs(cosines(x)),
        "effective_rank": rank,
        "effective_rank_null": rank_null,
        "participation_ratio": participation,
        "participation_ratio_null": participation_null,
        "intrinsic_dimension": two_nearest(x),
        "intrinsic_dimension_null": two_nearest(shuffled),
        "cluster_count": torch.tensor(len(label.unique())),
        "cluster_count_null": torch.tensor(len(linked(cosines(shuffled), angle).unique())),
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
    variance = torch.linalg.svdvals(centred).square()
    total = variance.sum()
    if float(total) == 0:
        return torch.zeros((), dtype=total.dtype), torch.zeros((), dtype=total.dtype)
    p = variance / total
    return torch.special.entr(p).sum().exp(), 1 / p.square().sum()


def two_nearest(x: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """The TwoNN estimate on points that differ; NaN with fewer than 3 of them."""
    distinct = x.unique(dim=0)
    if len(distinct) < 3:
        return torch.tensor(float("nan"), dtype=x.dtype)
    near = distances(distinct).topk(3, largest=False).values  # itself first
    logs = (near[:, 2] / near[:, 1]).log()
    return (len(distinct) - 1) / logs.sum() if float(logs.sum()) > 0 else torch.tensor(float("inf"), dtype=x.dtype)


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


def shuffle(x: Float[Tensor, "n d"], seed: int) -> Float[Tensor, "n d"]:
    """Every coordinate dealt out among the tokens anew."""
    order = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)).argsort(0)
    return x.gather(0, order)
