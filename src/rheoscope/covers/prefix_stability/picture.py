"""Do scores outlast another beginning? Every head, the mean over prefixes, beside what place alone explains."""

from typing import TYPE_CHECKING

from rheoscope.picture.head_map import TYPES_CAPTION, head_map
from rheoscope.picture.picture import Axis, Line, Panel, Picture

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "The same text alone and after other beginnings: blue heads score the same pairs of tokens alike in all of them. Beside it "
    "other tokens at the same distances: what is as blue there is a preference of place, not a relation of tokens."
)


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """Maps of all heads, and medians over depth, a line a prefix."""
    stability, null = dataset.stability, dataset.stability_null
    layers = tuple(f"L{layer}" for layer in dataset.layer.values)
    x = range(len(layers))
    lines = (
        Line("place alone", x, null.mean("prefix").median("head").values, "null", "dashed"),
        Line("the same tokens", x, stability.mean("prefix").median("head").values, "first"),
        Line("the prefix that changes most", x, stability.median("head").min("prefix").values, "second"),
    )
    description = "Median over the heads of a layer. " + stability.attrs["definition"]
    return Picture(
        "Do scores outlast another beginning?",
        CAPTION + TYPES_CAPTION * (types is not None),
        (
            head_map(
                "The same tokens",
                stability.attrs["definition"],
                stability.mean("prefix").values,
                types=types,
                name="Spearman’s ρ",
            ),
            head_map(
                "Place alone", null.attrs["definition"], null.mean("prefix").values, types=types, name="Spearman’s ρ"
            ),
            Panel("Over depth", description, lines, Axis("", layers)),
        ),
    )
