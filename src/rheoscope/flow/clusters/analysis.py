"""Cosines, ranks, intrinsic dimension and clusters of the cloud, layer by layer."""

import math
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.lower.block_size import block_numel, cache_block_numel
from rheoscope.flow.cloud import points_at_grain, select_clouds, to_space, type_means
from rheoscope.flow.clusters.concentration import gathering_statistics
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.pair_distances import cosines, distances
from rheoscope.space.settings import Angle, Draws, Grain, Seed, SpaceName
from rheoscope.space.single_linkage import single_linkage_labels
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces

if TYPE_CHECKING:
    import xarray

MIN_TOKENS = 3
"""The smallest number of tokens with a result. Two centred tokens always have the effective rank 1."""
MAX_TOKENS_ON_CPU = 256
"""Clouds on a GPU with at most this many tokens are clustered on the CPU, where small operations have no launch."""


@torch.no_grad()
def clusters(
    trace: Trace,
    space: SpaceName = "raw",
    grain: Grain = "layer",
    angle: Angle = math.pi / 4,
    draws: Draws = 2,
    seed: Seed = 0,
    keep_massive: bool = False,
) -> "xarray.Dataset":
    """Do tokens form clusters, layer by layer, and over how many directions does the cloud spread?

    **Formula** `attrs["definition"]` of each field has its formula. Two tokens are linked if the angle between their centred
    directions is at most `angle` (radians). Clusters are the connected components. Tokens of one type start at the same point and
    are close for that reason alone. The `type_` fields therefore have one point per type, the mean of its occurrences.

    **Returns** (point): `mean_cosine`, `mean_cosine_uncentred`, `effective_rank`, `participation_ratio`, `intrinsic_dimension`,
    `cluster_count`, `silhouette`, most with a null. (point, token): `label`, and `lineage`, the same with names that persist from
    layer to layer. (step): `ari`, `nmi`. For token types: `type_count`; (point): `type_cluster_count`, `type_effective_rank` and
    `type_flow`; (point, type): `type_label`. `type_flow` is "merging" if there are fewer clusters than in the embedding,
    "splitting" if there are more, else "unchanged".

    **Laws** 1 ≤ participation ratio ≤ effective rank ≤ min(n − 1, d). Rotating, shifting or scaling the cloud changes nothing,
    except that a shift changes the uncentred cosine. Smaller angles give more clusters. Repeating tokens at the same points does
    not change the `type_` fields.

    The null shuffles every coordinate among the tokens, which no model does. Compare with an untrained model
    (`rs.load(name, untrained=True)`) to separate training from architecture.

    **Source** Roy and Vetterli 2007 (effective rank), Facco et al. 2017 (TwoNN), Hubert and Arabie 1985 (ARI).

    **See also** `density_clusters` uses HDBSCAN. `purity` asks what the clusters consist of. `massive_tokens` lists the tokens
    that are left out.

    >>> import rheoscope as rs
    >>> result = rs.clusters(rs.load().trace("The keys to the cabinet are on the table in the hall"))
    >>> bool((result.participation_ratio <= result.effective_rank + 1e-6).all())
    True
    """
    if draws < 0 or draws == 1:
        raise RheoscopeError(
            Message("draws must be 0 (no null) or at least {low}, got {received}", low=2, received=draws), use(draws=2)
        )
    if not 0 < angle < math.pi:
        raise RheoscopeError(
            Message("angle must lie between 0 and π, both excluded, got {received}", received=angle), use(angle=0.785)
        )
    clouds = select_clouds(trace, space, grain, keep_massive, min_tokens=MIN_TOKENS)
    coords = {
        "point": list(clouds.steps),
        "token": clouds.positions,
        "token_text": ("token", clouds.token_texts),
        "step": list(clouds.steps[1:]),
        "type": clouds.type_texts,
    }
    attributes = {"angle": angle, "draws": draws, "seed": seed} | clouds.attributes
    is_small = clouds.trace.points.is_cuda and len(clouds.positions) <= MAX_TOKENS_ON_CPU
    return CLUSTERS.label(
        kernel(clouds.points.cpu() if is_small else clouds, clouds.types, angle, draws, seed), coords, attributes
    )


@torch.no_grad()
def batch(traces: Traces, space: str = "raw", grain: str = "layer", keep_massive: bool = False) -> dict[str, Tensor]:
    """Mean cosines and participation ratios of many texts at once. They need no eigenvalues, clusters or draws."""
    valid, view = traces.valid_tokens(keep_massive, min_tokens=MIN_TOKENS), traces.view
    half_precision = view.to_model_precision(traces.points[:0]).dtype.itemsize < 4
    dtypes = (torch.float32, view.dtype) if half_precision else (torch.float64, torch.float64)
    # the points of a grain start at 0 and are evenly spaced
    grain_slice = slice(None, None, points_at_grain(traces, grain)[1])
    points, norms = (x.transpose(0, 1)[grain_slice] for x in (traces.points, traces.norms))
    numbers_per_point = points[0].numel() * (points.shape[-2] // points.shape[-1] + 1)
    max_numbers = cache_block_numel(points.device) if points.device.type == "cpu" else block_numel(points.device)
    points_per_chunk = max(1, min(max_numbers // numbers_per_point, -(-len(points) // GPU_CHUNKS)))
    clouds = (to_space(view, x, space).to(dtypes[0]) for x in points.split(points_per_chunk))
    if space == "raw":
        return gathering_statistics(clouds, norms.to(dtypes[0]), valid, dtypes[1])
    cloud_list = list(clouds)
    return gathering_statistics(cloud_list, torch.cat([x.norm(dim=-1) for x in cloud_list]), valid, dtypes[1])


def kernel(
    clouds: Iterable[Float[Tensor, "n d"]], types: Int[Tensor, " n"], angle: float, draws: int, seed: int
) -> dict[str, Any]:
    """The statistics of clouds with the same tokens. Clouds are read one at a time to limit memory."""
    rows, null_rows = [], []
    for point_index, x in enumerate(clouds):
        centred = centre_cloud(x.double())
        row = cluster_statistics(centred, angle) | {"mean_cosine_uncentred": mean_cosine(x)}
        rows.append(row | type_cluster_statistics(centre_cloud(type_means(x, types)), angle))
        null_rows.append(null_samples(centred, point_index, angle, draws, seed))
    values = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    labels = values["label"]
    values |= null_statistics(torch.stack(null_rows)) if draws else {}
    return values | {
        "type_count": types.max() + 1,
        "type_flow": flow_directions(values["type_cluster_count"]),
        "lineage": lineage(labels.cpu()).to(labels.device),  # a sequential loop, faster on the CPU
        "ari": torch.stack([adjusted_rand_index(a, b) for a, b in pairwise(labels)]),
        "nmi": torch.stack([normalised_mutual_information(a, b) for a, b in pairwise(labels)]),
    }


def cluster_statistics(centred: Float[Tensor, "n d"], angle: float) -> dict[str, Tensor]:
    """The statistics of one centred cloud."""
    inner = centred @ centred.mT
    cosine, (rank, participation) = cosines(inner), rank_measures(centred, inner)
    label = single_linkage_labels(cosine, angle)
    return {
        "mean_cosine": mean_off_diagonal(cosine),
        "effective_rank": rank,
        "participation_ratio": participation,
        "intrinsic_dimension": two_nn_dimension(inner),
        "cluster_count": torch.tensor(len(label.unique()), device=label.device),
        "silhouette": silhouette(1 - cosine, label),
        "label": label,
    }


def type_cluster_statistics(centred: Float[Tensor, "t d"], angle: float) -> dict[str, Tensor]:
    """Clusters and effective rank of a cloud with one point per type."""
    inner = centred @ centred.mT
    label = single_linkage_labels(cosines(inner), angle)
    return {
        "type_label": label,
        "type_cluster_count": torch.tensor(len(label.unique()), device=label.device),
        "type_effective_rank": rank_measures(centred, inner)[0],
    }


def flow_directions(counts: Int[Tensor, " p"]) -> list[str]:
    """Whether each cloud has fewer, more or as many clusters as the first cloud.

    >>> flow_directions(torch.tensor([5, 7, 5, 2]))
    ['unchanged', 'splitting', 'unchanged', 'merging']
    """
    name_of_sign = {-1: "merging", 0: "unchanged", 1: "splitting"}
    return [name_of_sign[sign] for sign in (counts - counts[0]).sign().tolist()]


def null_samples(
    centred: Float[Tensor, "n d"], point_index: int, angle: float, draws: int, seed: int
) -> Float[Tensor, "draw 4"]:
    """Both ranks, intrinsic dimension and number of clusters for shuffles of the cloud at one point."""
    samples = []
    columns = centred.mT.float().contiguous()  # float32 is precise enough for a null
    for draw in range(draws):
        order = shuffle_orders(len(centred), centred.shape[1], seed + draw, point_index).to(columns.device)
        y = columns.gather(-1, order).mT  # the means of the coordinates do not change
        inner = y @ y.mT
        count = torch.tensor(len(single_linkage_labels(cosines(inner), angle).unique()), device=y.device)
        samples.append(torch.stack([*rank_measures(y, inner), two_nn_dimension(inner), count]))
    return torch.stack(samples).double() if samples else centred.new_empty(0, 4)


def null_statistics(samples: Float[Tensor, "p draw 4"]) -> dict[str, Float[Tensor, " p"]]:
    """Means over the shuffles. The relative standard deviation is pooled over points, since it hardly depends on the point."""
    rank, participation, dimension, count = samples.mean(1).unbind(-1)
    relative_sd = (samples.var(1) / samples.mean(1).square().clamp(min=1e-30)).mean(0).sqrt()
    return {
        "effective_rank_null": rank,
        "effective_rank_null_sd": rank * relative_sd[0],
        "participation_ratio_null": participation,
        "intrinsic_dimension_null": dimension,
        "cluster_count_null": count,
        "cluster_count_null_sd": count * relative_sd[3],
    }


def centre_cloud(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """The cloud minus its mean. A token within rounding error of the mean becomes exactly 0."""
    centred = x - x.mean(0)
    return torch.where(centred.norm(dim=-1, keepdim=True) <= 1e-12 * x.norm(dim=-1).amax(), 0, centred)


def mean_off_diagonal(table: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    n = len(table)
    return (table.sum() - table.diagonal().sum()) / (n * (n - 1))


def mean_cosine(x: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """Mean cosine over all pairs, from the sum of the directions. Two points at the origin have cosine 1."""
    length = x.norm(dim=-1, keepdim=True)
    n_nonzero = int((length > 0).sum())
    squared_sum = (x / torch.where(length > 0, length, 1)).sum(0).square().sum()
    n_at_origin = len(x) - n_nonzero
    return (squared_sum - n_nonzero + n_at_origin * (n_at_origin - 1)) / (len(x) * (len(x) - 1))


def rank_measures(
    centred: Float[Tensor, "n d"], inner: Float[Tensor, "n n"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Effective rank and participation ratio, from the smaller Gram matrix; 0 if all points are equal."""
    n, d = centred.shape
    eigenvalues = spectrum(inner if n <= d else centred.mT @ centred).double().clamp(min=0)
    total = eigenvalues.sum()
    if float(total) == 0:
        return torch.zeros_like(total), torch.zeros_like(total)
    p = eigenvalues / total
    return torch.special.entr(p).sum().exp(), 1 / p.square().sum()


def spectrum(table: Float[Tensor, "n n"]) -> Float[Tensor, " n"]:
    """The eigenvalues of a symmetric matrix. LAPACK may fail in float32 on many equal ones (a repetitive text); then in float64."""
    try:
        return torch.linalg.eigvalsh(table)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return torch.linalg.eigvalsh(table.double())


def two_nn_dimension(inner: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    """The TwoNN estimate on the distinct points; NaN for fewer than 3 of them."""
    distance = distances(inner)
    distinct = ~(distance == 0).tril(-1).any(-1)
    distance = distance if bool(distinct.all()) else distance[distinct][:, distinct]
    if len(distance) < 3:
        return inner.new_tensor(float("nan"))
    nearest = distance.topk(3, largest=False).values  # the point itself comes first
    log_ratio_sum = (nearest[:, 2] / nearest[:, 1]).log().sum()
    return (len(nearest) - 1) / log_ratio_sum if float(log_ratio_sum) > 0 else inner.new_tensor(float("inf"))


def silhouette(distance: Float[Tensor, "n n"], label: Int[Tensor, " n"]) -> Float[Tensor, ""]:
    """Rousseeuw's mean silhouette. A token alone in its cluster counts as 0. Fewer than two clusters give 0.

    This runs on any device and is 3 to 13 times as fast as scikit-learn for 20 to 1024 tokens (benchmarks/clusterings.py).
    """
    cluster_labels, cluster, sizes = label.unique(return_inverse=True, return_counts=True)
    if len(cluster_labels) < 2:
        return distance.new_zeros(())
    sums = distance.new_zeros(len(label), len(cluster_labels)).index_add_(1, cluster, distance)
    within = sums.gather(1, cluster[:, None])[:, 0] / (sizes[cluster] - 1).clamp(min=1)
    nearest_other = (sums / sizes).scatter(1, cluster[:, None], float("inf")).amin(-1)
    score = (nearest_other - within) / torch.maximum(nearest_other, within).clamp(min=1e-30)
    return torch.where(sizes[cluster] > 1, score, 0).mean()


def adjusted_rand_index(a: Int[Tensor, " n"], b: Int[Tensor, " n"]) -> Float[Tensor, ""]:
    """Hubert and Arabie's adjusted Rand index; 1 if both clusterings are one cluster, or both are all singletons.

    This runs on any device, avoids the slow import of scikit-learn and is 3.5 to 5 times as fast for 20 to 1024 tokens
    (benchmarks/clusterings.py).
    """
    n = len(a)
    joint_pairs, pairs_a, pairs_b = ((x * (x - 1) / 2).sum() for x in map(_cluster_sizes, (_joint_labels(a, b), a, b)))
    expected, maximum = pairs_a * pairs_b / (n * (n - 1) / 2), (pairs_a + pairs_b) / 2
    return torch.where(
        maximum == expected, 1, (joint_pairs - expected) / torch.where(maximum == expected, 1, maximum - expected)
    )


def normalised_mutual_information(a: Int[Tensor, " n"], b: Int[Tensor, " n"]) -> Float[Tensor, ""]:
    """I(a; b) divided by the mean of H(a) and H(b); 1 if both clusterings are one cluster."""
    joint_entropy, entropy_a, entropy_b = (
        torch.special.entr(_cluster_sizes(x) / len(a)).sum() for x in (_joint_labels(a, b), a, b)
    )
    mean_entropy = (entropy_a + entropy_b) / 2
    return torch.where(
        mean_entropy > 0, (entropy_a + entropy_b - joint_entropy) / torch.where(mean_entropy > 0, mean_entropy, 1), 1
    ).clamp(0, 1)


def _joint_labels(a: Int[Tensor, " n"], b: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """One number per pair of labels."""
    return a * (int(b.max()) + 1) + b


def _cluster_sizes(label: Int[Tensor, " n"]) -> Float[Tensor, " clusters"]:
    return label.unique(return_counts=True)[1].double()


def lineage(labels: Int[Tensor, "p n"]) -> Int[Tensor, "p n"]:
    """Cluster names that persist from cloud to cloud, matched greedily by overlap. Unmatched clusters get new names.

    >>> lineage(torch.tensor([[0, 0, 0, 3, 3], [0, 1, 1, 3, 3]])).tolist()
    [[0, 0, 0, 1, 1], [2, 0, 0, 1, 1]]
    """
    lineages = [labels[0].unique(return_inverse=True)[1]]
    next_name = int(lineages[0].max()) + 1
    for label in labels[1:]:
        base = int(label.max()) + 1
        pairs, sizes = _joint_labels(lineages[-1], label).unique(return_counts=True)
        names: dict[int, int] = {}
        continued: set[int] = set()
        for pair in pairs[sizes.argsort(descending=True, stable=True)].tolist():
            earlier, current = divmod(pair, base)
            if current not in names and earlier not in continued:
                names[current] = earlier
                continued.add(earlier)
        for current in label.unique().tolist():
            if current not in names:
                names[current], next_name = next_name, next_name + 1
        lineages.append(torch.tensor([names[current] for current in label.tolist()], device=label.device))
    return torch.stack(lineages)


def shuffle_coordinates(x: Float[Tensor, "n d"], seed: int, offset: int = 0) -> Float[Tensor, "n d"]:
    """Shuffle every coordinate among the tokens."""
    return x.gather(0, shuffle_orders(len(x), x.shape[1], seed, offset).mT.to(x.device))


def shuffle_orders(n: int, d: int, seed: int, offset: int = 0) -> Int[Tensor, "d n"]:
    """A random order of the tokens per coordinate. `offset` reuses the orders for other coordinates, since sampling is expensive."""
    return _random_orders(n, d, seed).roll(offset, 0)


@lru_cache(maxsize=4)
def _random_orders(n: int, d: int, seed: int) -> Int[Tensor, "d n"]:
    return torch.rand(d, n, generator=torch.Generator().manual_seed(seed)).argsort(-1)


GPU_CHUNKS = 8
"""Chunks of a batch on a GPU. This limits both launches and extra memory."""

CLUSTERS = Analysis(
    name="clusters",
    question="Do tokens form clusters, and over how many directions does the cloud spread?",
    ask=clusters,
    batch=batch,
    needs="trace",
    corpus=1,
    atlas=("mean_cosine_uncentred", "effective_rank", "intrinsic_dimension", "type_cluster_count"),
    atlas_settings={"draws": 0},
    colours_cloud=True,
    fields={
        "mean_cosine": Field(
            ("point",),
            "mean cosine of all pairs of tokens after subtracting the mean of the cloud",
        ),
        "mean_cosine_uncentred": Field(("point",), "mean cosine of all pairs of tokens, without centring"),
        "effective_rank": Field(
            ("point",),
            "exp of the entropy of σ²/Σσ², where σ are the singular values of the centred cloud",
            null="effective_rank_null",
            null_sd="effective_rank_null_sd",
        ),
        "effective_rank_null": Field(
            ("point",), "effective rank after shuffling every coordinate among the tokens", basis_dependent=True
        ),
        "effective_rank_null_sd": Field(
            ("point",),
            "standard deviation of the null over the shuffles, pooled over points relative to the null",
            basis_dependent=True,
        ),
        "participation_ratio": Field(
            ("point",),
            "(Σσ²)²/Σσ⁴ of the centred cloud, which weights large directions more than the effective rank",
            null="participation_ratio_null",
        ),
        "participation_ratio_null": Field(
            ("point",), "participation ratio after shuffling every coordinate among the tokens", basis_dependent=True
        ),
        "intrinsic_dimension": Field(
            ("point",),
            "TwoNN: (n − 1)/Σ log(r₂/r₁), where r₁ and r₂ are the distances to the two nearest distinct tokens",
            null="intrinsic_dimension_null",
        ),
        "intrinsic_dimension_null": Field(
            ("point",), "intrinsic dimension after shuffling every coordinate among the tokens", basis_dependent=True
        ),
        "cluster_count": Field(
            ("point",),
            "number of clusters of tokens (single linkage of centred directions below the angle)",
            null="cluster_count_null",
            null_sd="cluster_count_null_sd",
        ),
        "cluster_count_null": Field(
            ("point",), "number of clusters after shuffling every coordinate among the tokens", basis_dependent=True
        ),
        "cluster_count_null_sd": Field(
            ("point",),
            "standard deviation of the null over the shuffles, pooled over points relative to the null",
            basis_dependent=True,
        ),
        "silhouette": Field(
            ("point",),
            "mean of (b − a)/max(a, b), with cosine distances a to the own and b to the nearest other cluster",
        ),
        "type_count": Field((), "number of token types (distinct ids)"),
        "type_cluster_count": Field(
            ("point",),
            "number of clusters of token types, with one point per type (the mean of its occurrences)",
        ),
        "type_effective_rank": Field(("point",), "effective rank of the cloud with one point per type"),
        "type_flow": Field(
            ("point",),
            "merging if there are fewer clusters of types than in the embedding, splitting if more, else unchanged",
        ),
        "type_label": Field(
            ("point", "type"), "cluster of the token type, named by its first type", is_categorical=True
        ),
        "label": Field(("point", "token"), "cluster of the token, named by its first token", is_categorical=True),
        "lineage": Field(
            ("point", "token"),
            "cluster of the token, with names that persist from layer to layer (matched by overlap)",
            is_categorical=True,
        ),
        "ari": Field(
            ("step",), "adjusted Rand index of the clusters before and after a step: 1 if equal, about 0 if unrelated"
        ),
        "nmi": Field(
            ("step",),
            "normalised mutual information of the clusters before and after a step: 1 if equal, 0 if unrelated",
        ),
    },
)
