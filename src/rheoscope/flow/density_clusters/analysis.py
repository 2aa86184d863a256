"""Clusters by density: HDBSCAN finds as many as there are, and says which tokens belong to none."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.flow.cloud import clouds, of_types
from rheoscope.flow.clusters.analysis import shuffle
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.pair_distances import cosines, inner_products
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray


@torch.no_grad()
def density_clusters(
    trace: Trace,
    space: str = "raw",
    grain: str = "layer",
    least: int = 5,
    seed: int = 0,
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
    seen = clouds(trace, space, grain, keep_massive, least=3)
    if not 2 <= least <= len(seen.tokens):
        raise RheoscopeError(f"a cluster has from 2 to {len(seen.tokens)} tokens here, got least={least}; type least=2")
    coords = {"point": list(seen.steps), "token": seen.tokens, "type": seen.type_words}
    values = kernel(seen, seen.types, least, seed)
    return DENSITY_CLUSTERS.answer(values, coords, {"least": least, "seed": seed} | seen.attributes)


def kernel(
    clouds: Iterable[Float[Tensor, "n d"]], types: Int[Tensor, " n"], least: int, seed: int
) -> dict[str, Tensor]:
    """Labels of clouds of the same tokens, one after the other; HDBSCAN itself runs on the CPU."""
    each = [
        (
            by_density(x.double(), least),
            by_density(shuffle(x.double(), seed), least),
            by_density(of_types(x, types), least),
        )
        for x in clouds
    ]
    labels, nulls, of_type = (torch.stack(column) for column in zip(*each, strict=True))
    return {
        "cluster_count": labels.amax(-1) + 1,
        "cluster_count_null": nulls.amax(-1) + 1,
        "noise": (labels < 0).double().mean(-1),
        "label": labels,
        "type_label": of_type,
    }


def by_density(x: Float[Tensor, "n d"], least: int) -> Int[Tensor, " n"]:
    """Labels from 0 on, −1 for tokens in no cluster."""
    try:
        from sklearn.cluster import HDBSCAN
    except ImportError as error:
        raise RheoscopeError("HDBSCAN is scikit-learn's; type pip install 'rheoscope[density]'") from error

    if len(x) < least:
        return torch.full((len(x),), -1)
    distance = (1 - cosines(inner_products(x))).clamp(min=0)
    distance.fill_diagonal_(0)
    found = HDBSCAN(min_cluster_size=least, metric="precomputed", copy=True).fit_predict(distance.cpu().numpy())
    return torch.as_tensor(found).long()


DENSITY_CLUSTERS = Analysis(
    name="density_clusters",
    question="Which clusters does HDBSCAN find, no angle chosen, and which tokens belong to none?",
    ask=density_clusters,
    needs="trace",
    dear=True,
    fields={
        "cluster_count": Field(
            ("point",),
            "clusters that HDBSCAN finds among the centred directions of the tokens (cosine distance)",
            null="cluster_count_null",
        ),
        "cluster_count_null": Field(("point",), "the same with every coordinate shuffled among the tokens", basis=True),
        "noise": Field(("point",), "share of tokens that belong to no cluster"),
        "label": Field(("point", "token"), "which cluster a token is in; −1: none", names=True),
        "type_label": Field(
            ("point", "type"),
            "which cluster a type is in, one point each, the mean of its occurrences; −1: none",
            names=True,
        ),
    },
)
