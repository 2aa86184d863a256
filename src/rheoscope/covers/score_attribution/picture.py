"""Why a head looks there: the strongest pairs of components behind a score, and the map of all of them."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.bars import bars
from rheoscope.picture.picture import Axis, Cells, Panel, Picture, number

if TYPE_CHECKING:
    import xarray

MOST = 14
"""Components that a side of the map can hold; the others are added up as the rest."""
PAIRS = 12
REST = "rest"
CAPTION = (
    "A score is a sum over pairs: what a component wrote into the query's token, times what a component wrote into "
    "the key's token. Blue pairs raise the score, orange ones lower it; all squares add up to it exactly, but for "
    "what position adds by itself. "
)


def picture(dataset: "xarray.Dataset") -> Picture:
    """The map of components, and the strongest pairs."""
    layer, head, of = (dataset.attrs[name] for name in ("layer", "head", "pairs"))
    whole = "on the whole text" if of == "all" else f": token {of}"
    said = f"Score {number(float(dataset.score))}, of which position {number(float(dataset.position_bias))}."
    return Picture(
        f"Why L{layer}.H{head} looks where it does, {whole}".replace(", :", ":"),
        CAPTION + said,
        (table(dataset), pairs(dataset)),
    )


def table(dataset: "xarray.Dataset") -> Panel:
    """The components that weigh most on either side, the others added up."""
    values, queries, keys = gathered(dataset)
    tips = [
        [f"{a} of the query, {b} of the key: {number(float(values[i, j]))}" for j, b in enumerate(keys)]
        for i, a in enumerate(queries)
    ]
    reach = max(float(np.abs(values).max()), 1e-30)
    marks = (Cells(values, tips=tips, low=-reach, high=reach, name="added to the score"),)
    about = f"{dataset.contribution.attrs['definition']}. Rows: the query's token, columns: the key's token."
    height = max(1.4, (len(queries) * 17 + 60) / 236)
    return Panel(
        "All pairs of components", about, marks, Axis("of the key", keys), Axis("of the query", queries), 2, height
    )


def gathered(dataset: "xarray.Dataset") -> tuple[np.ndarray, tuple[str, ...], tuple[str, ...]]:
    """The table with at most MOST components a side and the rest: its sum is the sum of all."""
    values, names = dataset.contribution.values, np.array([str(name) for name in dataset["from"].values])
    sides: list[tuple[str, ...]] = []
    for axis in (0, 1):
        weight = np.abs(values).sum(1 - axis)
        first = np.sort(np.argsort(-weight, kind="stable")[:MOST])
        others = np.setdiff1d(np.arange(len(weight)), first)
        left = np.take(values, others, axis).sum(axis, keepdims=True)
        values = np.concatenate([np.take(values, first, axis), *([left] if len(others) else [])], axis)
        sides.append((*names[first].tolist(), *([REST] if len(others) else [])))
    return values, sides[0], sides[1]


def pairs(dataset: "xarray.Dataset") -> Panel:
    """A bar for each of the strongest pairs, the strongest on top."""
    values, names = dataset.contribution.values, [str(name) for name in dataset["from"].values]
    order = np.argsort(-np.abs(values).ravel(), kind="stable")[:PAIRS]
    places = [divmod(int(at), values.shape[1]) for at in order]
    table = [(f"{names[a]} × {names[b]}", float(values[a, b])) for a, b in places]
    about = "What the strongest pairs add to the score: the query's component × the key's component."
    return bars("The strongest pairs", about, table, "added to the score")
