"""Clusters by density: HDBSCAN finds as many as there are, and says which tokens belong to none."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.flow.cloud import select_clouds, type_means
from rheoscope.flow.clusters.analysis import shuffle_coordinates
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
    least: Annotated[int, Bounds(1, 10_000)] = 5,
    seed: Seed = 0,
    keep_massive: bool = False,
) -> "xarray.Dataset":
    """Clusters of at least `least` tokens by HDBSCAN, layer by layer: no angle to choose.

    **Gives** (point): `cluster_count`, its null, `noise`; (point, token): `label`; (point, type): `type_label`, of one point a type.

    **Laws** unchanged by a turn, a shift and a scale of the cloud.

    **Source** Campello, Moulavi, Sander 2013, by scikit-learn (`pip install rheoscope[density]`). About two seconds a cloud
    at 1024 tokens, which is why `clusters` does without it.

    **Siblings** `clusters` links at a fixed angle; `purity` takes the answer of either.

    >>> import rheoscope as rs
    >>> found = rs.density_clusters(rs.load().trace("The keys to the cabinet are on the table in the hall"), least=2)
    >>> bool((found.noise <= 1).all())
    True
    """
    clouds = select_clouds(trace, space, grain, keep_massive, min_tokens=3)
    if not 2 <= least <= len(clouds.positions):
        raise RheoscopeError(
            f"a cluster has from 2 to {len(clouds.positions)} tokens here, got least={least}; type least=2"
        )
    coords = {"point": list(clouds.steps), "token": clouds.positions, "type": clouds.type_texts}
    values = kernel(clouds, clouds.types, least, seed)
    return DENSITY_CLUSTERS.label(values, coords, {"least": least, "seed": seed} | clouds.attributes)


def kernel(
    clouds: Iterable[Float[Tensor, "n d"]], types: Int[Tensor, " n"], min_size: int, seed: int
) -> dict[str, Tensor]:
    """Labels of clouds of the same tokens, one after the other; HDBSCAN itself runs on the CPU."""
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
        "noise": (labels < 0).double().mean(-1),
        "label": labels,
        "type_label": type_labels,
    }


def hdbscan_labels(x: Float[Tensor, "n d"], min_size: int) -> Int[Tensor, " n"]:
    """Labels from 0 on, −1 for tokens in no cluster."""
    try:
        from sklearn.cluster import HDBSCAN
    except ImportError as error:
        raise RheoscopeError("HDBSCAN is scikit-learn's; type pip install 'rheoscope[density]'") from error

    if len(x) < min_size:
        return torch.full((len(x),), -1)
    distance = (1 - cosines(centred_inner_products(x))).clamp(min=0)
    distance.fill_diagonal_(0)
    labels = HDBSCAN(min_cluster_size=min_size, metric="precomputed", copy=True).fit_predict(distance.cpu().numpy())
    return torch.as_tensor(labels).long()


DENSITY_CLUSTERS = Analysis(
    name="density_clusters",
    question="Which clusters does HDBSCAN find, no angle chosen, and which tokens belong to none?",
    ask=density_clusters,
    needs="trace",
    expensive=True,
    fields={
        "cluster_count": Field(
            ("point",),
            "clusters that HDBSCAN finds among the centred directions of the tokens (cosine distance)",
            null="cluster_count_null",
        ),
        "cluster_count_null": Field(
            ("point",), "the same with every coordinate shuffled among the tokens", basis_dependent=True
        ),
        "noise": Field(("point",), "share of tokens that belong to no cluster"),
        "label": Field(("point", "token"), "which cluster a token is in; −1: none", is_categorical=True),
        "type_label": Field(
            ("point", "type"),
            "which cluster a type is in, one point each, the mean of its occurrences; −1: none",
            is_categorical=True,
        ),
    },
)
