"""Do tokens gather by density? How many clusters HDBSCAN finds beside a shuffled cloud, and how many tokens are in none."""

from typing import TYPE_CHECKING

from rheoscope.picture.picture import Axis, Line, Panel, Picture
from rheoscope.picture.token_labels import step_names

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "Clusters by HDBSCAN, no angle chosen. The null (dashed) is the same cloud with each coordinate shuffled among the tokens; noise "
    "are tokens that belong to no cluster."
)


def picture(dataset: "xarray.Dataset") -> Picture:
    """Clusters with their null, and the share of noise, over depth."""
    names = tuple(step_names(dataset.point.values))
    x = range(len(names))
    count, null = (dataset[name].values.astype(float) for name in ("cluster_count", "cluster_count_null"))
    count_lines = Line("null", x, null, "second", "dashed"), Line("clusters", x, count, "second")
    noise_lines = (Line("noise", x, dataset.noise.values, "first"),)
    definitions = (dataset[name].attrs["definition"] for name in ("cluster_count", "noise"))
    return Picture(
        "Do tokens gather by density?",
        CAPTION,
        (
            Panel("Number of clusters", next(definitions), count_lines, Axis("", names), Axis(low=0.0)),
            Panel("Tokens in no cluster", next(definitions), noise_lines, Axis("", names), Axis(low=0.0, high=1.03)),
        ),
    )
