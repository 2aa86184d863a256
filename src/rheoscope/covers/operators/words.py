"""Heads as operators: a row a layer, the median over its heads, and the heads at both ends of every number."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.numbers import format_number
from rheoscope.picture.blocks import Block, Cell, Lines, Table
from rheoscope.space.results import Results

if TYPE_CHECKING:
    import xarray

OPERATOR_COLUMNS = {
    "symmetry": "symmetry",
    "positive_share": "positive",
    "directionality": "direction",
    "stable_rank_M": "rank M",
    "stable_rank_F": "rank F",
    "copying": "copying",
    "alignment": "alignment",
}
SIGNED_FIELDS = ("symmetry", "positive_share", "directionality", "copying", "alignment")
SCORE_COLUMNS = {
    "centred": "form",
    "mean_query": "mean q",
    "mean_key": "mean k",
    "query_bias": "bias q",
    "key_bias": "bias k",
    "row_sd": "nats",
    "positive_share_cloud": "positive",
}
CLIMB_HEADER = Cell(
    "climb",
    "what the layer's heads climb of their own energy Λ by what they add, summed over the heads, in nats; heads turned at random "
    "climb nothing to first order",
)


def layer_table(dataset: "xarray.Dataset", columns: dict[str, str], heading: str, note: str = "") -> Table:
    """A row a layer: the median over its heads of every number."""
    header = [Cell("layer"), *(Cell(title, str(dataset[name].attrs["definition"])) for name, title in columns.items())]
    medians = dataset[list(columns)].median("head")
    rows = [
        [Cell(f"L{layer}"), *(Cell(format_number(float(medians[name][layer]))) for name in columns)]
        for layer in range(dataset.sizes["layer"])
    ]
    return Table(heading, header, rows, note=note)


def blocks(results: Results) -> list[Block]:
    """The table of a model's heads, with what they climb on a text where there is one."""
    if "operators" not in results.datasets:
        return []
    table = layer_table(
        results.datasets["operators"], OPERATOR_COLUMNS, "Heads as operators: median over the heads of a layer"
    )
    if "energy" not in results.datasets:
        return [table]
    energy = results.datasets["energy"]
    energy_gains = (energy.energy_after - energy.energy).sum("head").values
    rows = [[*row, Cell(format_number(float(gain)))] for row, gain in zip(table.rows, energy_gains, strict=True)]
    return [Table(table.heading, [*table.header, CLIMB_HEADER], rows)]


def extreme_heads(results: Results) -> list[Block]:
    """The heads at both ends of every number that has a sign; of one head there are none."""
    if "operators" not in results.datasets or results.datasets["operators"].symmetry.size < 2:
        return []
    lines = []
    for name in SIGNED_FIELDS:
        values = results.datasets["operators"][name].values
        if not np.isfinite(values).any():
            continue
        ends = [divmod(int(index), values.shape[1]) for index in (np.nanargmin(values), np.nanargmax(values))]
        low, high = (f"L{layer}.H{head} {format_number(float(values[layer, head]))}" for layer, head in ends)
        lines.append(f"{OPERATOR_COLUMNS[name]}: from {low} to {high}")
    return [Lines("From head to head", lines)]


def score_blocks(results: Results) -> list[Block]:
    """What scores are made of on a text, where there is one."""
    if "scores" not in results.datasets:
        return []
    massive = ", ".join(map(str, results.datasets["scores"].attrs["massive"])) or "none"
    heading = "What scores are made of on this text (shares of what softmax sees)"
    return [layer_table(results.datasets["scores"], SCORE_COLUMNS, heading, f"massive tokens left out: {massive}")]
