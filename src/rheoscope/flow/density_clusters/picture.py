"""Do tokens gather by density? How many clusters HDBSCAN finds beside a shuffled cloud, and how many tokens are in none."""

from typing import TYPE_CHECKING

from rheoscope.picture.picture import Axis, Line, Panel, Picture
from rheoscope.picture.token_labels import places

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "Clusters by HDBSCAN, no angle chosen. The null (dashed) is the same cloud with each coordinate shuffled among the tokens; noise "
    "are tokens that belong to no cluster."
)


def picture(dataset: "xarray.Dataset") -> Picture:
    """Clusters with their null, and the share of noise, over depth."""
    names = tuple(places(dataset.point.values))
    at = range(len(names))
    count, null = (dataset[name].values.astype(float) for name in ("cluster_count", "cluster_count_null"))
    counts = Line("null", at, null, "second", "dashed"), Line("clusters", at, count, "second")
    noise = (Line("noise", at, dataset.noise.values, "first"),)
    about = (dataset[name].attrs["definition"] for name in ("cluster_count", "noise"))
    return Picture(
        "Do tokens gather by density?",
        CAPTION,
        (
            Panel("Number of clusters", next(about), counts, Axis("", names), Axis(low=0.0)),
            Panel("Tokens in no cluster", next(about), noise, Axis("", names), Axis(low=0.0, high=1.03)),
        ),
    )
