"""Panels that draw a photo with the patches of its tokens: coloured by a number, or by group."""

from collections.abc import Mapping, Sequence

import numpy as np

from rheoscope.picture.picture import SERIES_COLOURS, Axis, Cells, Panel, Photo, Shape
from rheoscope.space.image_patches import Patches

HEIGHT = 1.5
"""The height of a photo in rows of panels."""
OPACITY = 0.55
HEADROOM = 0.4
"""How far the colour scale extends beyond the largest number, relative to the range of the numbers."""


def number_panel(title: str, about: str, patches: Patches, values: np.ndarray, name: str) -> Panel:
    """The photo under a map of a number per patch. The patch with the smallest number is clear, and none hides the photo."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    cells = Cells(values, low=low, centre=low, high=high + HEADROOM * (high - low), name=name)
    return _panel(title, about, patches, (cells,))


def group_panel(title: str, about: str, patches: Patches, groups: Mapping[str, Sequence[int]]) -> Panel:
    """The photo with the patches of each group of tokens in a colour."""
    shapes = [
        _square(name, patches.places[token].tolist(), colour)
        for (name, tokens), colour in zip(groups.items(), SERIES_COLOURS, strict=False)
        for token in tokens
        if int(patches.places[token, 0]) >= 0
    ]
    return _panel(title, about, patches, tuple(shapes))


def _panel(title: str, about: str, patches: Patches, marks: tuple[Cells | Shape, ...]) -> Panel:
    rows, columns = patches.grid_size
    x, y = (Axis(bare=True, low=-0.5, high=n - 0.5) for n in (columns, rows))
    photo = Photo(patches.photo.cpu().numpy(), rows, columns)
    return Panel(title, about, (photo, *marks), x, y, height=HEIGHT, equal=True)


def _square(name: str, place: list[int], colour: str) -> Shape:
    row, column = place
    x, y = np.array([-0.5, 0.5, 0.5, -0.5]) + column, np.array([-0.5, -0.5, 0.5, 0.5]) + row
    return Shape(name, x, y, colour, OPACITY)
