"""What clusters are made of, over depth: how far each purity lies from its null."""

from typing import TYPE_CHECKING

from rheoscope.picture.picture import CLUSTERS, Axis, Line, Panel, Picture
from rheoscope.picture.token_labels import places

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "Whether the token types of a cluster are forms of one word, are equally frequent in the text, or share what a person named "
    "them; each type is one point, the mean of its occurrences. Purity grows with the number of clusters, so each line is its "
    "distance from the same names permuted among the types, in standard deviations; there is none where every permutation is "
    "as pure. One pair of types can be many standard deviations where few share a cluster: the p-values say how rare it is."
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
    about = f"{dataset.purity_z.attrs['definition']}. By chance somewhere as pure: {_chances(dataset)}."
    beyond = Panel("Distance from the null (z)", about, tuple(z), Axis("", points))
    return Picture("What clusters are made of", CAPTION, (beyond, shares))


def _chances(dataset: "xarray.Dataset") -> str:
    """The p-value of every kind of name over all points."""
    return ", ".join(f"{by} p = {float(dataset.p_value_anywhere.sel(by=by)):.3f}" for by in dataset.by.values)
