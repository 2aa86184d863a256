"""How near attention is to heat on its own graph: distances and memory over time beside their null, and maps of the heads."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.head_map import TYPED, head_map
from rheoscope.picture.picture import Axis, Line, Panel, Picture

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "Heat spreads over the graph of a head as its walk does with steps at random times. Curves are medians over heads. The null deals "
    "the weights of every row anew among the keys that it may read; heads that differ from it at the first time (q < .05) are framed."
)
TITLES = {
    "heat_distance": "Powers of attention from heat",
    "green_distance": "Powers of attention from the Green's function",
    "memory": "What heat remembers of its origin",
}


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """A curve for each number beside its null, then the first distance and the gap of every head."""
    curves = tuple(over_time(dataset, name) for name in TITLES)
    maps = (first(dataset, types), gaps(dataset, types))
    return Picture("Is attention a diffusion?", CAPTION + TYPED * (types is not None), (*curves, *maps))


def over_time(dataset: "xarray.Dataset", name: str) -> Panel:
    """The median over heads at every time, and the null's."""
    shown = {name: ("heads", "first", "solid"), f"{name}_null": ("dealt anew", "null", "dashed")}
    lines = [
        Line(said, dataset.time.values, dataset[field].median(("layer", "head")).values, colour, style)
        for field, (said, colour, style) in shown.items()
        if field in dataset
    ]
    return Panel(TITLES[name], f"{dataset[name].attrs['definition']}.", tuple(lines), Axis("time"), Axis(low=0.0))


def first(dataset: "xarray.Dataset", types: "xarray.Dataset | None") -> Panel:
    """The distance to heat of every head at the first time."""
    at = dataset.isel(time=0)
    marked, beside = frozenset[tuple[int, int]](), {}
    if "q_value" in at:
        marked = frozenset((int(a), int(b)) for a, b in np.argwhere(at.q_value.values < 0.05))
        beside = {"dealt anew": at.heat_distance_null.values, "q": at.q_value.values}
    about = f"{at.heat_distance.attrs['definition']}."
    title = f"Distance from heat at time {int(at.time)}"
    return head_map(title, about, at.heat_distance.values, (0.0, 1.0), marked, beside, types, name="total variation")


def gaps(dataset: "xarray.Dataset", types: "xarray.Dataset | None") -> Panel:
    """How fast heat settles."""
    values = dataset.gap.values
    top = float(np.nanmax(values)) if np.isfinite(values).any() else 1.0
    return head_map(
        "How fast heat settles",
        f"{dataset.gap.attrs['definition']}.",
        values,
        (0.0, max(top, 1.0)),
        types=types,
        name="gap",
    )
