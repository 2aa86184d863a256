"""The plot of `density_clusters`: the number of clusters with its null, and the share of unclustered tokens."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.picture.picture import Axis, Line, Panel, Picture
from rheoscope.picture.token_labels import step_names

if TYPE_CHECKING:
    import xarray

CAPTION = Message(
    "HDBSCAN chooses the number of clusters. The null (dashed) is the same cloud with every coordinate shuffled among the tokens."
)


def picture(dataset: "xarray.Dataset") -> Picture:
    """The number of clusters with its null, and the share of unclustered tokens, over depth."""
    names = tuple(step_names(dataset.point.values))
    x = range(len(names))
    count, null = (dataset[name].values.astype(float) for name in ("cluster_count", "cluster_count_null"))
    count_lines = (
        Line(Message("null"), x, null, "second", "dashed"),
        Line(Message("clusters"), x, count, "second"),
    )
    unclustered_lines = (Line(Message("unclustered tokens"), x, dataset.unclustered_share.values, "first"),)
    definitions = (dataset[name].attrs["definition"] for name in ("cluster_count", "unclustered_share"))
    return Picture(
        Message("Density clusters"),
        CAPTION,
        (
            Panel(Message("Number of clusters"), next(definitions), count_lines, Axis("", names), Axis(low=0.0)),
            Panel(
                Message("Share of tokens in no cluster"),
                next(definitions),
                unclustered_lines,
                Axis("", names),
                Axis(low=0.0, high=1.03),
            ),
        ),
    )
