"""The picture of agreement: maps of all heads, raw and controlled, and medians over depth."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message, join, plural
from rheoscope.picture.head_map import TYPES_CAPTION, head_map
from rheoscope.picture.picture import Axis, Line, Panel, Picture

if TYPE_CHECKING:
    import xarray

CAPTION = Message(
    "Blue heads score similar keys higher, orange heads score dissimilar keys higher. Faint heads have little preference. "
    "The raw map counts proximity and key length as similarity. The controlled map removes both. Framed heads differ from "
    "random heads with the same singular values at a false discovery rate of 5 %. “Position alone” is what distance "
    "explains. “Untrained” is the same architecture at initial weights."
)
MAP_TITLES = {
    "agreement": Message("Agreement, controlled for distance and length"),
    "z": Message("Deviation from random heads (z)"),
    "agreement_raw": Message("Agreement, raw"),
    "agreement_untrained": Message("Agreement, untrained"),
    "position_baseline": Message("Position alone"),
    "agreement_embedding": Message("Agreement with the embedding"),
}
LINE_STYLES = {
    "agreement_raw": (Message("raw"), "second"),
    "agreement": (Message("controlled for distance and length"), "first"),
    "agreement_embedding": (Message("with the embedding"), "third"),
    "agreement_untrained": (Message("untrained"), "fourth"),
}


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """Maps of all heads, and medians over depth with the null and the untrained control if they exist."""
    maps = [
        head_map(
            title,
            dataset[name].attrs["definition"],
            dataset[name].values,
            (-5.0, 5.0) if name == "z" else (-1.0, 1.0),
            significant_heads(dataset) if name == "agreement" else frozenset(),
            tip_values(dataset) if name == "agreement" else {},
            types,
            name="z" if name == "z" else Message("Spearman’s ρ"),
        )
        for name, title in MAP_TITLES.items()
        if name in dataset
    ]
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    description = Message(
        "Median over the heads of a layer: {definition}.", definition=dataset.agreement.attrs["definition"]
    )
    depth_panel = Panel(Message("Over depth"), description, depth_lines(dataset), Axis("", layers))
    draws_note = plural(
        "The null has {n:,} draw per head.", "The null has {n:,} draws per head.", n=int(dataset.attrs["draws"])
    )
    caption = join(" ", [CAPTION, draws_note, *([] if types is None else [TYPES_CAPTION])])
    return Picture(Message("Does attention read similarity?"), caption, (*maps, depth_panel))


def over_texts(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """The same picture for means over several texts (`rs.over_texts(rs.agreement, traces)`), with intervals in the tips."""
    renames = {"agreement_z": "z", "agreement_q_value": "q_value"}
    base_picture = picture(dataset.rename({old: new for old, new in renames.items() if old in dataset}), types)
    title = Message("{title} Means over {n} texts", title=base_picture.title, n=dataset.attrs["texts"])
    return replace(base_picture, title=title)


def significant_heads(dataset: "xarray.Dataset") -> frozenset[tuple[int, int]]:
    """The heads that differ from their null at a false discovery rate of 5 %."""
    if "q_value" not in dataset:
        return frozenset()
    return frozenset((int(a), int(b)) for a, b in np.argwhere(dataset.q_value.values <= 0.05))


def tip_values(dataset: "xarray.Dataset") -> dict[str, np.ndarray]:
    """Further values for the tip of a head: z, and both ends of the interval of a mean."""
    names = {"z": "z", "agreement_low": Message("from"), "agreement_high": Message("to")}
    return {
        label: dataset[name].values
        for name, label in names.items()
        if name in dataset and bool(dataset[name].notnull().any())
    }


def depth_lines(dataset: "xarray.Dataset") -> tuple[Line, ...]:
    """Medians over the heads of every layer, with two standard deviations of the null on both sides."""
    x = range(dataset.sizes["layer"])
    null_edges = {Message("null + 2 sd"): 2, Message("null − 2 sd"): -2} if "null_sd" in dataset else {}
    null_lines = tuple(
        Line(title, x, (dataset.null_mean + k * dataset.null_sd).median("head").values, "null", "dashed")
        for title, k in null_edges.items()
    )
    return null_lines + tuple(
        Line(title, x, dataset[name].median("head").values, colour)
        for name, (title, colour) in LINE_STYLES.items()
        if name in dataset
    )
