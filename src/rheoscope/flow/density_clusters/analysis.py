"""Density clusters: HDBSCAN chooses their number and leaves some tokens unclustered."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.flow.cloud import select_clouds, type_means
from rheoscope.flow.clusters.analysis import shuffle_coordinates
from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.pair_distances import centred_inner_products, cosines
from rheoscope.space.settings import Bounds, Grain, Seed, SpaceName
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray


@torch.no_grad()
def density_clusters(
    trace: Trace,
    space: SpaceName = "raw",
    grain: Grain = "layer",
    min_cluster_size: Annotated[int, Bounds(1, 10_000)] = 5,
    seed: Seed = 0,
    keep_massive: bool = False,
) -> "xarray.Dataset":
    """Find clusters with HDBSCAN, layer by layer. No angle has to be chosen.

    **Question** Which clusters do the tokens form, and which tokens belong to none?

    **Returns** (point): `cluster_count` with its null, `unclustered_share`. (point, token): `label`. (point, type): `type_label`,
    where each token type is one point, the mean of its occurrences.

    **Settings** `min_cluster_size` is the smallest number of tokens in a cluster.

    **Laws** Rotating, shifting or scaling the cloud changes nothing.

    **Source** Campello, Moulavi, Sander 2013, as implemented in scikit-learn (`pip install rheoscope[density]`). A cloud of 1024
    tokens takes about two seconds.

    **See also** `clusters` links tokens below a fixed angle and is faster. `purity` accepts the result of either.

    >>> import rheoscope as rs
    >>> trace = rs.load().trace("The keys to the cabinet are on the table in the hall")
    >>> result = rs.density_clusters(trace, min_cluster_size=2)
    >>> bool((result.unclustered_share <= 1).all())
    True
    """
    clouds = select_clouds(trace, space, grain, keep_massive, min_tokens=3)
    if not 2 <= min_cluster_size <= len(clouds.positions):
        raise RheoscopeError(
            Message(
                "min_cluster_size must lie between 2 and the number of tokens, {n}, got {received}",
                n=len(clouds.positions),
                received=min_cluster_size,
            ),
            use(min_cluster_size=2),
        )
    coords = {"point": list(clouds.steps), "token": clouds.positions, "type": clouds.type_texts}
    values = kernel(clouds, clouds.types, min_cluster_size, seed)
    return DENSITY_CLUSTERS.label(
        values, coords, {"min_cluster_size": min_cluster_size, "seed": seed} | clouds.attributes
    )


def kernel(
    clouds: Iterable[Float[Tensor, "n d"]], types: Int[Tensor, " n"], min_size: int, seed: int
) -> dict[str, Tensor]:
    """Cluster the clouds one after the other. All have the same tokens. HDBSCAN runs on the CPU."""
    rows = [
        (
            hdbscan_labels(x.double(), min_size),
            hdbscan_labels(shuffle_coordinates(x.double(), seed), min_size),
            hdbscan_labels(type_means(x, types), min_size),
        )
        for x in clouds
    ]
    labels, null_labels, type_labels = (torch.stack(column) for column in zip(*rows, strict=True))
    return {
        "cluster_count": labels.amax(-1) + 1,
        "cluster_count_null": null_labels.amax(-1) + 1,
        "unclustered_share": (labels < 0).double().mean(-1),
        "label": labels,
        "type_label": type_labels,
    }


def hdbscan_labels(x: Float[Tensor, "n d"], min_size: int) -> Int[Tensor, " n"]:
    """The cluster of every token, counted from 0; −1 for tokens in no cluster."""
    try:
        from sklearn.cluster import HDBSCAN
    except ImportError as error:
        raise RheoscopeError(
            Message("density_clusters needs scikit-learn, which is not installed"),
            Advice("pip install 'rheoscope[density]'", "pip install 'rheoscope[density]'"),
        ) from error

    if len(x) < min_size:
        return torch.full((len(x),), -1)
    distance = (1 - cosines(centred_inner_products(x))).clamp(min=0)
    distance.fill_diagonal_(0)
    labels = HDBSCAN(min_cluster_size=min_size, metric="precomputed", copy=True).fit_predict(distance.cpu().numpy())
    return torch.as_tensor(labels).long()


DENSITY_CLUSTERS = Analysis(
    name="density_clusters",
    question="Which density clusters (HDBSCAN) do the tokens form, and which tokens belong to none?",
    ask=density_clusters,
    needs="trace",
    expensive=True,
    fields={
        "cluster_count": Field(
            ("point",),
            "number of clusters that HDBSCAN finds among the centred directions of the tokens (cosine distance)",
            null="cluster_count_null",
        ),
        "cluster_count_null": Field(
            ("point",), "number of clusters after shuffling every coordinate among the tokens", basis_dependent=True
        ),
        "unclustered_share": Field(("point",), "share of tokens in no cluster"),
        "label": Field(("point", "token"), "cluster of the token, −1 if it is in none", is_categorical=True),
        "type_label": Field(
            ("point", "type"),
            "cluster of the token type, represented by the mean of its occurrences, −1 if it is in none",
            is_categorical=True,
        ),
    },
)
