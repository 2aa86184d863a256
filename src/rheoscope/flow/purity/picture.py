"""The plot of `purity`: z-scores and purities over depth."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message, join
from rheoscope.picture.picture import SERIES_COLOURS, Axis, Line, Panel, Picture
from rheoscope.picture.token_labels import step_names

if TYPE_CHECKING:
    import xarray

CAPTION = Message(
    "Whether the token types of a cluster are forms of one word, equally frequent in the text, or share a user-defined label. Each type "
    "is one point. Purity grows with the number of clusters, so the lines show z-scores against labels permuted among the types. A "
    "single pair can give a large z-score if few types share a cluster; the p-values account for this."
)


def picture(dataset: "xarray.Dataset") -> Picture:
    """The z-scores, if there is a null, and the purities, one line per labelling."""
    points = tuple(step_names(dataset.point.values))
    kinds = list(zip(SERIES_COLOURS, dataset.by.values, strict=False))
    x = range(len(points))
    purity_lines = [
        Line(str(label_kind), x, dataset.purity.sel(by=label_kind).values, colour) for colour, label_kind in kinds
    ]
    purity_panel = Panel(
        Message("Purity"), dataset.purity.attrs["definition"], tuple(purity_lines), Axis("", points), Axis(high=1.03)
    )
    title = Message("What clusters consist of")
    if "purity_z" not in dataset:
        return Picture(title, CAPTION, (purity_panel,))
    z_lines = [
        Line(str(label_kind), x, dataset.purity_z.sel(by=label_kind).values, colour) for colour, label_kind in kinds
    ]
    description = Message(
        "{definition}. p-values over all points: {p_values}.",
        definition=dataset.purity_z.attrs["definition"],
        p_values=_p_values_text(dataset),
    )
    z_panel = Panel(Message("Distance from the null (z)"), description, tuple(z_lines), Axis("", points))
    return Picture(title, CAPTION, (z_panel, purity_panel))


def _p_values_text(dataset: "xarray.Dataset") -> Message:
    """The p-value of every labelling over all points."""
    p_values = {str(label_kind): float(dataset.p_value_anywhere.sel(by=label_kind)) for label_kind in dataset.by.values}
    return join(", ", [Message("{labelling} {p:.3f}", labelling=name, p=p) for name, p in p_values.items()])
