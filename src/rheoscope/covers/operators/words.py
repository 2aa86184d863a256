"""Heads as operators: a row a layer, the median over its heads, and the heads at both ends of every number."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.numbers import short
from rheoscope.picture.blocks import Block, Cell, Lines, Table
from rheoscope.space.results import Answers

if TYPE_CHECKING:
    import xarray

COLUMNS = {
    "symmetry": "symmetry",
    "positive_share": "positive",
    "directionality": "direction",
    "stable_rank_M": "rank M",
    "stable_rank_F": "rank F",
    "copying": "copying",
    "alignment": "alignment",
}
SIGNED = ("symmetry", "positive_share", "directionality", "copying", "alignment")
SCORES = {
    "centred": "form",
    "mean_query": "mean q",
    "mean_key": "mean k",
    "query_bias": "bias q",
    "key_bias": "bias k",
    "spread": "nats",
    "positive_share_cloud": "positive",
}
CLIMB = Cell(
    "climb",
    "what the layer's heads climb of their own energy Λ by what they add, summed over the heads, in nats; heads turned at random "
    "climb nothing to first order",
)


def by_layer(dataset: "xarray.Dataset", columns: dict[str, str], heading: str, note: str = "") -> Table:
    """A row a layer: the median over its heads of every number."""
    header = [Cell("layer"), *(Cell(title, str(dataset[name].attrs["definition"])) for name, title in columns.items())]
    medians = dataset[list(columns)].median("head")
    rows = [
        [Cell(f"L{layer}"), *(Cell(short(float(medians[name][layer]))) for name in columns)]
        for layer in range(dataset.sizes["layer"])
    ]
    return Table(heading, header, rows, note=note)


def blocks(answers: Answers) -> list[Block]:
    """The table of a model's heads, with what they climb on a text where there is one."""
    if "operators" not in answers.found:
        return []
    table = by_layer(answers.found["operators"], COLUMNS, "Heads as operators: median over the heads of a layer")
    if "energy" not in answers.found:
        return [table]
    heads = answers.found["energy"]
    climbed = (heads.energy_after - heads.energy).sum("head").values
    rows = [[*row, Cell(short(float(climb)))] for row, climb in zip(table.rows, climbed, strict=True)]
    return [Table(table.heading, [*table.header, CLIMB], rows)]


def extremes(answers: Answers) -> list[Block]:
    """The heads at both ends of every number that has a sign; of one head there are none."""
    if "operators" not in answers.found or answers.found["operators"].symmetry.size < 2:
        return []
    lines = []
    for name in SIGNED:
        values = answers.found["operators"][name].values
        if not np.isfinite(values).any():
            continue
        ends = [divmod(int(at), values.shape[1]) for at in (np.nanargmin(values), np.nanargmax(values))]
        low, high = (f"L{layer}.H{head} {short(float(values[layer, head]))}" for layer, head in ends)
        lines.append(f"{COLUMNS[name]}: from {low} to {high}")
    return [Lines("From head to head", lines)]


def scores(answers: Answers) -> list[Block]:
    """What scores are made of on a text, where there is one."""
    if "scores" not in answers.found:
        return []
    left_out = ", ".join(map(str, answers.found["scores"].attrs["massive"])) or "none"
    heading = "What scores are made of on this text (shares of what softmax sees)"
    return [by_layer(answers.found["scores"], SCORES, heading, f"massive tokens left out: {left_out}")]
