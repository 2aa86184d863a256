"""Photos with their patches: numbers and groups land on the right squares, in every renderer."""

import numpy as np
import torch

from rheoscope.flow.photo_panels import group_panel, number_panel
from rheoscope.picture.picture import Cells, Panel, Photo, Picture, Shape
from rheoscope.report.draw.inline import panel_svg
from rheoscope.report.draw.paper import to_figure
from rheoscope.space.image_patches import Patches

PLACES = torch.tensor([[-1, -1], [0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]])
PATCHES = Patches(PLACES, torch.zeros(16, 24, 3, dtype=torch.uint8))


def panels() -> tuple[Panel, Panel]:
    values = PATCHES.on_grid([0, 1, 6], [9.0, 1.0, 3.0])
    return number_panel("n", "", PATCHES, values, "x"), group_panel("g", "", PATCHES, {"a": [0, 1], "b": [5]})


def test_values_of_tokens_lie_at_their_patches() -> None:
    values = PATCHES.on_grid([0, 1, 6], [9.0, 1.0, 3.0])
    assert PATCHES.grid_size == (2, 3)
    assert values[0, 0] == 1.0
    assert values[1, 2] == 3.0
    assert np.isnan(values).sum() == 4


def test_the_smallest_number_leaves_the_photo_clear_and_the_largest_does_not_hide_it() -> None:
    (cells,) = (mark for mark in panels()[0].marks if isinstance(mark, Cells))
    assert cells.shades[0, 0] == 0.0
    assert 0.5 < cells.shades[1, 2] < 0.9


def test_groups_are_squares_around_their_patches() -> None:
    shapes = [mark for mark in panels()[1].marks if isinstance(mark, Shape)]
    assert [(shape.name, float(np.mean(shape.x)), float(np.mean(shape.y))) for shape in shapes] == [
        ("a", 0, 0),
        ("b", 1, 1),
    ]


def test_every_renderer_draws_the_photo_behind_the_marks() -> None:
    for panel in panels():
        assert isinstance(panel.marks[0], Photo)
        svg = panel_svg(panel)
        assert svg.index("<image") < svg.index("<rect" if panel.cell_maps else "<polygon")
    figure = to_figure(Picture("", "", panels()))
    figure.draw_without_rendering()
    photos = [axes for axes in figure.axes if axes.get_images() and len(axes.get_images()[0].get_array().shape) == 3]
    assert [axes.get_ylim() for axes in photos] == [(1.5, -0.5)] * 2


def test_the_first_row_of_patches_is_at_the_top() -> None:
    y = {}
    for shape in panel_svg(panels()[1]).split("<polygon")[1:]:
        points = shape.split('points="')[1].split('"')[0].split()
        y[shape.split("<title>")[1][0]] = float(points[0].split(",")[1])
    assert y["a"] < y["b"]
