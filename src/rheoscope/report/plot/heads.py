"""One number of every head as a map of layers x heads: the panel that analyses of heads share."""

from collections.abc import Mapping

import numpy as np

from rheoscope.report.picture import Axis, Cells, Panel


def head_map(
    title: str,
    about: str,
    values: np.ndarray,
    reach: tuple[float, float] = (-1.0, 1.0),
    marked: frozenset[tuple[int, int]] = frozenset(),
    beside: Mapping[str, np.ndarray] | None = None,
) -> Panel:
    """One square a head, colours over `reach`, some heads framed; further numbers `beside` it under the pointer."""
    layers, count = values.shape
    tips = [[_tip(layer, head, values, beside or {}) for head in range(count)] for layer in range(layers)]
    sides = Axis("head", tuple(str(h) for h in range(count))), Axis("", tuple(f"L{layer}" for layer in range(layers)))
    cells = Cells(values, tips=tips, marked=marked, low=reach[0], high=reach[1])
    return Panel(title, about, (cells,), *sides, height=max(0.8, (layers * 9 + 46) / 236))


def _tip(layer: int, head: int, values: np.ndarray, beside: Mapping[str, np.ndarray]) -> str:
    more = "".join(f", {name} {table[layer, head]:.1f}" for name, table in beside.items())
    return f"L{layer}.H{head}: {values[layer, head]:.3f}{more}"
