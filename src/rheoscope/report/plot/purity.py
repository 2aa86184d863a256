"""What clusters are made of, over depth: how far each purity lies from its null."""

from typing import TYPE_CHECKING

from rheoscope.report.picture import CLUSTERS, Axis, Line, Panel, Picture
from rheoscope.report.tokens import places

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "Whether the tokens of a cluster are the same token, share a stem, are equally frequent, or stand in the same quarter of "
    "the text. Purity grows with the number of clusters, so each line is its distance from the same names permuted among the "
    "tokens, in standard deviations: beyond 2 it is hardly chance."
)


def picture(dataset: "xarray.Dataset") -> Picture:
    """z of every kind of name where a null was drawn, and the purities themselves."""
    points = tuple(places(dataset.point.values))
    kinds = list(zip(CLUSTERS, dataset.by.values, strict=False))
    at = range(len(points))
    share = [Line(str(by), at, dataset.purity.sel(by=by).values, colour) for colour, by in kinds]
    shares = Panel("Purity", dataset.purity.attrs["definition"], tuple(share), Axis("", points), Axis(high=1.03))
    if "purity_z" not in dataset:
        return Picture("What clusters are made of", CAPTION, (shares,))
    z = [Line(str(by), at, dataset.purity_z.sel(by=by).values, colour) for colour, by in kinds]
    chance = Line("2, hardly chance", at, [2.0] * len(points), "null", "dashed")
    beyond = Panel("Distance from the null (z)", dataset.purity_z.attrs["definition"], (chance, *z), Axis("", points))
    return Picture("What clusters are made of", CAPTION, (beyond, shares))
