"""What a change costs in each head alone, beside random changes of its size: maps, and sums over depth."""

from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.report.draw.notebook import in_notebook
from rheoscope.report.draw.paper import on_paper
from rheoscope.report.picture import CLUSTERS, Axis, Line, Panel, Picture
from rheoscope.report.plot.heads import TYPED, head_map

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

CAPTION = (
    "One head changed at a time. Blue heads cost loss when they are changed, orange ones save some; framed where the bootstrap interval "
    "leaves 0 out. The second map takes away what a random change costs in the same head: what is left belongs to this change."
)


def picture_by_head(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """Cost of the edit, what it costs beyond each random change, and the sums over the heads of every layer."""
    cost = _map(dataset, "cost", "edit", "Cost of the edit, nats", types)
    beyond = [
        _map(dataset, "excess", str(change), f"Beyond the control {str(change)!r}, nats", types)
        for change in dataset.change.values[1:]
    ]
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    lines = tuple(
        Line(str(change), range(len(layers)), dataset.cost.sel(change=change).sum("head").values, colour)
        for change, colour in zip(dataset.change.values, CLUSTERS, strict=False)
    )
    about = f"Summed over the heads of a layer. {dataset.cost.attrs['definition']}"
    over = Panel("Over depth", about, lines, Axis("", layers))
    return Picture("What each head's change costs alone", CAPTION + TYPED * (types is not None), (cost, *beyond, over))


def _map(dataset: "xarray.Dataset", field: str, change: str, title: str, types: "xarray.Dataset | None") -> Panel:
    values, low, high = (dataset[f"{field}{end}"].sel(change=change).values for end in ("", "_low", "_high"))
    sure = np.argwhere((low > 0) | (high < 0))
    reach = float(np.nanquantile(np.abs(values), 0.98)) or 1.0  # a few heads would bleach all others
    marked = frozenset((int(layer), int(head)) for layer, head in sure)
    ends = {"from": low, "to": high}
    return head_map(title, dataset[field].attrs["definition"], values, (-reach, reach), marked, ends, types)


def plot_by_head(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> "Figure":
    """The picture with matplotlib, for papers; `types=rs.head_types(model)` marks the types of heads."""
    return on_paper(picture_by_head(dataset, types))


def interactive_by_head(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Any:
    """The picture with plotly, for notebooks."""
    return in_notebook(picture_by_head(dataset, types))
