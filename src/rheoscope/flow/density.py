"""Clusters by density: HDBSCAN finds as many as there are, and says which tokens belong to none."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.flow.cloud import clouds
from rheoscope.flow.clusters import shuffle
from rheoscope.shapes import RheoscopeError
from rheoscope.space.dataset import dataset
from rheoscope.space.pairs import cosines, inner_products
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

DEFINITIONS = {
    "cluster_count": "clusters that HDBSCAN finds among the centred directions of the tokens (cosine distance)",
    "cluster_count_null": "the same with every coordinate shuffled among the tokens (basis-dependent)",
    "noise": "share of tokens that belong to no cluster",
    "label": "which cluster a token is in; −1: none",
}


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

    **Gives** (point): `cluster_count`, its null, `noise`; (point, token): `label`.

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
    if not 2 <= least <= len(seen.kept):
        raise RheoscopeError(f"a cluster has from 2 to {len(seen.kept)} tokens here, got least={least}; type least=2")
    labels = torch.stack([by_density(x.double(), least) for x in seen])
    nulls = torch.stack([by_density(shuffle(x.double(), seed), least) for x in seen])
    values = {
        "cluster_count": (("point",), labels.amax(-1) + 1),
        "cluster_count_null": (("point",), nulls.amax(-1) + 1),
        "noise": (("point",), (labels < 0).double().mean(-1)),
        "label": (("point", "token"), labels),
    }
    coords = {"point": list(seen.steps), "token": seen.kept}
    attributes = {"analysis": "density_clusters", "least": least, "seed": seed} | seen.attributes
    return dataset(values, DEFINITIONS, coords, attributes)


def by_density(x: Float[Tensor, "n d"], least: int) -> Int[Tensor, " n"]:
    """Labels from 0 on, −1 for tokens in no cluster."""
    try:
        from sklearn.cluster import HDBSCAN
    except ImportError as error:
        raise RheoscopeError("HDBSCAN is scikit-learn's; type pip install 'rheoscope[density]'") from error

    distance = (1 - cosines(inner_products(x))).clamp(min=0)
    distance.fill_diagonal_(0)
    found = HDBSCAN(min_cluster_size=least, metric="precomputed", copy=True).fit_predict(distance.numpy())
    return torch.as_tensor(found).long()
