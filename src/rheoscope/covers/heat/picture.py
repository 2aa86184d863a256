"""How near attention is to heat on its own graph: distances and memory over time beside their null, and maps of the heads."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.head_map import TYPES_CAPTION, head_map
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
    "row_distance": "What heat remembers of its origin",
}


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """A curve for each number beside its null, then the first distance and the gap of every head."""
    curves = tuple(time_panel(dataset, name) for name in TITLES)
    maps = (first_distance_map(dataset, types), gap_map(dataset, types))
    return Picture("Is attention a diffusion?", CAPTION + TYPES_CAPTION * (types is not None), (*curves, *maps))


def time_panel(dataset: "xarray.Dataset", name: str) -> Panel:
    """The median over heads at every time, and the null's."""
    series = {name: ("heads", "first", "solid"), f"{name}_null": ("dealt anew", "null", "dashed")}
    lines = [
        Line(label, dataset.time.values, dataset[field].median(("layer", "head")).values, colour, style)
        for field, (label, colour, style) in series.items()
        if field in dataset
    ]
    return Panel(TITLES[name], f"{dataset[name].attrs['definition']}.", tuple(lines), Axis("time"), Axis(low=0.0))


def first_distance_map(dataset: "xarray.Dataset", types: "xarray.Dataset | None") -> Panel:
    """The distance to heat of every head at the first time."""
    first_time = dataset.isel(time=0)
    framed_heads, tip_values = frozenset[tuple[int, int]](), {}
    if "q_value" in first_time:
        framed_heads = frozenset((int(a), int(b)) for a, b in np.argwhere(first_time.q_value.values < 0.05))
        tip_values = {"dealt anew": first_time.heat_distance_null.values, "q": first_time.q_value.values}
    description = f"{first_time.heat_distance.attrs['definition']}."
    title = f"Distance from heat at time {int(first_time.time)}"
    return head_map(
        title,
        description,
        first_time.heat_distance.values,
        (0.0, 1.0),
        framed_heads,
        tip_values,
        types,
        name="total variation",
    )


def gap_map(dataset: "xarray.Dataset", types: "xarray.Dataset | None") -> Panel:
    """How fast heat settles."""
    values = dataset.spectral_gap.values
    max_gap = float(np.nanmax(values)) if np.isfinite(values).any() else 1.0
    return head_map(
        "How fast heat settles",
        f"{dataset.spectral_gap.attrs['definition']}.",
        values,
        (0.0, max(max_gap, 1.0)),
        types=types,
        name="gap",
    )
