"""What clusters are made of, over depth: how far each purity lies from its null."""

from typing import TYPE_CHECKING

from rheoscope.picture.picture import SERIES_COLOURS, Axis, Line, Panel, Picture
from rheoscope.picture.token_labels import step_names

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
    points = tuple(step_names(dataset.point.values))
    kinds = list(zip(SERIES_COLOURS, dataset.by.values, strict=False))
    x = range(len(points))
    purity_lines = [
        Line(str(label_kind), x, dataset.purity.sel(by=label_kind).values, colour) for colour, label_kind in kinds
    ]
    purity_panel = Panel(
        "Purity", dataset.purity.attrs["definition"], tuple(purity_lines), Axis("", points), Axis(high=1.03)
    )
    if "purity_z" not in dataset:
        return Picture("What clusters are made of", CAPTION, (purity_panel,))
    z_lines = [
        Line(str(label_kind), x, dataset.purity_z.sel(by=label_kind).values, colour) for colour, label_kind in kinds
    ]
    description = f"{dataset.purity_z.attrs['definition']}. By chance somewhere as pure: {_p_values_text(dataset)}."
    z_panel = Panel("Distance from the null (z)", description, tuple(z_lines), Axis("", points))
    return Picture("What clusters are made of", CAPTION, (z_panel, purity_panel))


def _p_values_text(dataset: "xarray.Dataset") -> str:
    """The p-value of every kind of name over all points."""
    return ", ".join(
        f"{label_kind} p = {float(dataset.p_value_anywhere.sel(by=label_kind)):.3f}" for label_kind in dataset.by.values
    )
