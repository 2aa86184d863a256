"""The picture of `heat`: distances over time with their null, and maps of the first distance and the gap."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message, join
from rheoscope.picture.head_map import TYPES_CAPTION, head_map
from rheoscope.picture.picture import Axis, Line, Panel, Picture

if TYPE_CHECKING:
    import xarray

CAPTION = Message(
    "The heat kernel of a head is its random walk with steps at random times. Curves are medians over heads. The null permutes the "
    "weights of every row among its permitted keys. Heads that differ from it at the first time (q < .05) are framed."
)
TITLES = {
    "heat_distance": Message("Distance from the heat kernel"),
    "green_distance": Message("Distance from the Green's function"),
    "row_distance": Message("Distance between rows of the heat kernel"),
}


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """A curve of each distance with its null, then maps of the first distance and the spectral gap."""
    curves = tuple(time_panel(dataset, name) for name in TITLES)
    maps = (first_distance_map(dataset, types), spectral_gap_map(dataset, types))
    caption = CAPTION if types is None else join(" ", [CAPTION, TYPES_CAPTION])
    return Picture(Message("Is attention a diffusion?"), caption, (*curves, *maps))


def time_panel(dataset: "xarray.Dataset", name: str) -> Panel:
    """The median over heads at every time, and that of the null."""
    series = {
        name: (Message("heads"), "first", "solid"),
        f"{name}_null": (Message("weights permuted"), "null", "dashed"),
    }
    lines = [
        Line(label, dataset.time.values, dataset[field].median(("layer", "head")).values, colour, style)
        for field, (label, colour, style) in series.items()
        if field in dataset
    ]
    description = Message("{definition}.", definition=dataset[name].attrs["definition"])
    return Panel(TITLES[name], description, tuple(lines), Axis(Message("time")), Axis(low=0.0))


def first_distance_map(dataset: "xarray.Dataset", types: "xarray.Dataset | None") -> Panel:
    """`heat_distance` of every head at the first time."""
    first_time = dataset.isel(time=0)
    framed_heads, tip_values = frozenset[tuple[int, int]](), {}
    if "q_value" in first_time:
        framed_heads = frozenset((int(a), int(b)) for a, b in np.argwhere(first_time.q_value.values < 0.05))
        tip_values = {
            Message("weights permuted"): first_time.heat_distance_null.values,
            "q": first_time.q_value.values,
        }
    return head_map(
        Message("Distance from the heat kernel at time {time}", time=int(first_time.time)),
        Message("{definition}.", definition=first_time.heat_distance.attrs["definition"]),
        first_time.heat_distance.values,
        (0.0, 1.0),
        framed_heads,
        tip_values,
        types,
        name=Message("total variation"),
    )


def spectral_gap_map(dataset: "xarray.Dataset", types: "xarray.Dataset | None") -> Panel:
    """The spectral gap of every head."""
    values = dataset.spectral_gap.values
    max_gap = float(np.nanmax(values)) if np.isfinite(values).any() else 1.0
    return head_map(
        Message("Spectral gap"),
        Message("{definition}.", definition=dataset.spectral_gap.attrs["definition"]),
        values,
        (0.0, max(max_gap, 1.0)),
        types=types,
        name=Message("spectral gap"),
    )
