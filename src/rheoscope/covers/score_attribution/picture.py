"""The picture of `score_attribution`: a map of pairs of components, and the strongest pairs."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message
from rheoscope.picture.bars import bar_panel
from rheoscope.picture.picture import Axis, Cells, Panel, Picture, format_value

if TYPE_CHECKING:
    import xarray

MAX_COMPONENTS = 14
"""The largest number of components on a side of the map. The others are summed."""
MAX_PAIRS = 12
REST_LABEL = Message("rest")


def picture(dataset: "xarray.Dataset") -> Picture:
    """The map of components, and the strongest pairs."""
    head = f"L{dataset.attrs['layer']}.H{dataset.attrs['head']}"
    title = Message("Attribution of the scores of {head} on the whole text", head=head)
    if dataset.attrs["pairs"] != "all":
        title = Message("Attribution of a score of {head}: token {pair}", head=head, pair=dataset.attrs["pairs"])
    caption = Message(
        "A score is a sum over pairs: a component of the query's token with a component of the key's token. Blue pairs raise the score and "
        "orange pairs lower it. All cells and the position bias add up to the score. Score: {score}, position bias: {bias}.",
        score=format_value(float(dataset.score)),
        bias=format_value(float(dataset.position_bias)),
    )
    return Picture(title, caption, (component_map(dataset), pair_bars(dataset)))


def component_map(dataset: "xarray.Dataset") -> Panel:
    """The components with the largest contributions on either side, and the sum of the others."""
    values, queries, keys = merge_small_components(dataset)
    tips = [
        [
            Message(
                "{query} of the query, {key} of the key: {value}",
                query=query,
                key=key,
                value=format_value(float(values[i, j])),
            )
            for j, key in enumerate(keys)
        ]
        for i, query in enumerate(queries)
    ]
    limit = max(float(np.abs(values).max()), 1e-30)
    marks = (Cells(values, tips=tips, low=-limit, high=limit, name=Message("contribution")),)
    description = Message(
        "{definition}. Rows: the query's token, columns: the key's token.",
        definition=dataset.contribution.attrs["definition"],
    )
    height = max(1.4, (len(queries) * 17 + 60) / 236)
    return Panel(
        Message("All pairs of components"),
        description,
        marks,
        Axis(Message("of the key"), keys),
        Axis(Message("of the query"), queries),
        2,
        height,
    )


def merge_small_components(dataset: "xarray.Dataset") -> tuple[np.ndarray, tuple[str, ...], tuple[str, ...]]:
    """The contributions of at most MAX_COMPONENTS components per side and of the rest. The total is unchanged."""
    values, sides = dataset.contribution.values, list[tuple[str, ...]]()
    for axis, dim in enumerate(("from", "to")):
        names = np.array([str(name) for name in dataset[dim].values])
        weights = np.abs(values).sum(1 - axis)
        largest = np.sort(np.argsort(-weights, kind="stable")[:MAX_COMPONENTS])
        remaining = np.setdiff1d(np.arange(len(weights)), largest)
        remainder = np.take(values, remaining, axis).sum(axis, keepdims=True)
        values = np.concatenate([np.take(values, largest, axis), *([remainder] if len(remaining) else [])], axis)
        sides.append((*names[largest].tolist(), *([REST_LABEL] if len(remaining) else [])))
    return values, sides[0], sides[1]


def pair_bars(dataset: "xarray.Dataset") -> Panel:
    """One bar per pair, the strongest on top."""
    values = dataset.contribution.values
    query_names, key_names = ([str(name) for name in dataset[dim].values] for dim in ("from", "to"))
    order = np.argsort(-np.abs(values).ravel(), kind="stable")[:MAX_PAIRS]
    index_pairs = [divmod(int(index), values.shape[1]) for index in order]
    entries = [(f"{query_names[a]} × {key_names[b]}", float(values[a, b])) for a, b in index_pairs]
    description = Message("The largest contributions to the score: component of the query × component of the key.")
    return bar_panel(Message("The strongest pairs"), description, entries, Message("contribution"))
