"""A table of medians over the heads of each layer."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number
from rheoscope.picture.blocks import Cell, Table

if TYPE_CHECKING:
    import xarray


def head_median_table(dataset: "xarray.Dataset", columns: Mapping[str, str], heading: str, note: str = "") -> Table:
    """One row per layer with the median of each field over its heads. `columns` maps field names to column titles."""
    header = [
        Cell(Message("layer")),
        *(Cell(title, str(dataset[name].attrs["definition"])) for name, title in columns.items()),
    ]
    medians = dataset[list(columns)].median("head")
    rows = [
        [Cell(f"L{layer}"), *(Cell(format_number(float(medians[name][layer]))) for name in columns)]
        for layer in range(dataset.sizes["layer"])
    ]
    return Table(heading, header, rows, note=note)
