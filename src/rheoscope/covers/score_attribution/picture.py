"""Why a head looks there: the strongest pairs of components behind a score, and the map of all of them."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.bars import bar_panel
from rheoscope.picture.picture import Axis, Cells, Panel, Picture, format_value

if TYPE_CHECKING:
    import xarray

MAX_COMPONENTS = 14
"""Components that a side of the map can hold; the others are added up as the rest."""
MAX_PAIRS = 12
REST_LABEL = "rest"
CAPTION = (
    "A score is a sum over pairs: what a component wrote into the query's token, times what a component wrote into "
    "the key's token. Blue pairs raise the score, orange ones lower it; all squares add up to it exactly, but for "
    "what position adds by itself. "
)


def picture(dataset: "xarray.Dataset") -> Picture:
    """The map of components, and the strongest pairs."""
    layer, head, pair_selection = (dataset.attrs[name] for name in ("layer", "head", "pairs"))
    selection_text = "on the whole text" if pair_selection == "all" else f": token {pair_selection}"
    score_text = (
        f"Score {format_value(float(dataset.score))}, of which position {format_value(float(dataset.position_bias))}."
    )
    return Picture(
        f"Why L{layer}.H{head} looks where it does, {selection_text}".replace(", :", ":"),
        CAPTION + score_text,
        (component_map(dataset), pair_bars(dataset)),
    )


def component_map(dataset: "xarray.Dataset") -> Panel:
    """The components that weigh most on either side, the others added up."""
    values, queries, keys = merge_small_components(dataset)
    tips = [
        [f"{a} of the query, {b} of the key: {format_value(float(values[i, j]))}" for j, b in enumerate(keys)]
        for i, a in enumerate(queries)
    ]
    limit = max(float(np.abs(values).max()), 1e-30)
    marks = (Cells(values, tips=tips, low=-limit, high=limit, name="added to the score"),)
    description = f"{dataset.contribution.attrs['definition']}. Rows: the query's token, columns: the key's token."
    height = max(1.4, (len(queries) * 17 + 60) / 236)
    return Panel(
        "All pairs of components",
        description,
        marks,
        Axis("of the key", keys),
        Axis("of the query", queries),
        2,
        height,
    )


def merge_small_components(dataset: "xarray.Dataset") -> tuple[np.ndarray, tuple[str, ...], tuple[str, ...]]:
    """The table with at most MOST components a side and the rest: its sum is the sum of all."""
    values, names = dataset.contribution.values, np.array([str(name) for name in dataset["from"].values])
    sides: list[tuple[str, ...]] = []
    for axis in (0, 1):
        weights = np.abs(values).sum(1 - axis)
        largest = np.sort(np.argsort(-weights, kind="stable")[:MAX_COMPONENTS])
        remaining = np.setdiff1d(np.arange(len(weights)), largest)
        remainder = np.take(values, remaining, axis).sum(axis, keepdims=True)
        values = np.concatenate([np.take(values, largest, axis), *([remainder] if len(remaining) else [])], axis)
        sides.append((*names[largest].tolist(), *([REST_LABEL] if len(remaining) else [])))
    return values, sides[0], sides[1]


def pair_bars(dataset: "xarray.Dataset") -> Panel:
    """A bar for each of the strongest pairs, the strongest on top."""
    values, names = dataset.contribution.values, [str(name) for name in dataset["from"].values]
    order = np.argsort(-np.abs(values).ravel(), kind="stable")[:MAX_PAIRS]
    index_pairs = [divmod(int(index), values.shape[1]) for index in order]
    entries = [(f"{names[a]} × {names[b]}", float(values[a, b])) for a, b in index_pairs]
    description = "What the strongest pairs add to the score: the query's component × the key's component."
    return bar_panel("The strongest pairs", description, entries, "added to the score")
