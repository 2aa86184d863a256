"""One number of every head as a map of layers x heads: the panel that analyses of heads share."""

import numpy as np

from rheoscope.report.picture import Axis, Cells, Panel


def head_map(
    title: str, about: str, values: np.ndarray, reach: float, marked: frozenset[tuple[int, int]] = frozenset()
) -> Panel:
    """One square a head, colours from −reach to reach, some heads framed."""
    layers, count = values.shape
    tips = [[f"L{a}.H{b}: {values[a, b]:.3f}" for b in range(count)] for a in range(layers)]
    sides = Axis("head", tuple(str(h) for h in range(count))), Axis("", tuple(f"L{layer}" for layer in range(layers)))
    height = max(0.8, (layers * 9 + 46) / 236)
    return Panel(
        title, about, (Cells(values, tips=tips, marked=marked, low=-reach, high=reach),), *sides, height=height
    )
