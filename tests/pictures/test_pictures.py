"""Every analysis has a plot that all renderers draw: its own plot and the default plot of its fields."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from rheoscope import catalogue
from rheoscope.picture import field_panels
from rheoscope.picture.head_map import TYPE_COLOURS
from rheoscope.picture.picture import Cells, Line, Picture
from rheoscope.report.draw.inline import picture_html
from rheoscope.report.draw_result import picture_of
from tests.pictures.cases import (
    check_all_renderers,
    check_html,
    example_head_types,
    example_picture,
    example_result,
    model,
    run_example,
    small,
)
from tests.report.parts import Parts

WITH_NULL = [name for name in catalogue.analysis_names() if "draws" in catalogue.analysis_by_name(name).settings]
NAMES = [*catalogue.analysis_names(), *(["surgery_per_head"] if "surgery" in catalogue.ANALYSIS_MODULES else [])]

IN_THREE_LAYERS: dict[str, dict[str, Any]] = {"decay": {"heads": [(2, 0), (2, 1)]}, "fixed_point": {"layers": [0, 2]}}
"""Settings of the examples that a model of three layers needs otherwise."""


@cache
def picture_with_texts(name: str) -> Picture:
    return example_picture(name, token_strings=model().token_strings)


@pytest.mark.parametrize("name", NAMES)
def test_all_renderers_draw_every_panel(name: str) -> None:
    check_all_renderers(picture_with_texts(name))


@pytest.mark.parametrize("name", NAMES)
def test_default_plot_names_every_field(name: str) -> None:
    """For an analysis without its own plot, the test above covers the default plot in all renderers."""
    picture = field_panels.picture(example_result(name))
    check_html(picture)
    texts = picture.caption + "".join(panel.title + panel.about for panel in picture.panels)
    assert all(field_panels.field_title(field) in texts for field in field_panels.main_fields(example_result(name)))


@pytest.mark.parametrize("name", WITH_NULL)
def test_a_result_without_a_null_has_no_null_line(name: str) -> None:
    """`draws=0` omits the null, so that no null line is drawn."""
    without_null = run_example(name, small(), draws=0, **IN_THREE_LAYERS.get(name, {}))
    assert not without_null.attrs["draws"]
    picture = picture_of(without_null)
    check_html(picture)
    check_html(field_panels.picture(without_null))
    for line in (mark for panel in picture.panels for mark in panel.marks if isinstance(mark, Line)):
        assert line.colour != "null" or np.isfinite(np.asarray(line.y, dtype=float)).any(), line.name


@pytest.mark.parametrize("name", NAMES)
def test_head_types_are_dots_on_every_map_with_one_legend(name: str) -> None:
    types = example_head_types()
    without_types, with_types = example_picture(name), example_picture(name, types=types)
    assert not without_types.legend or name == "head_types"
    maps = [index for index, panel in enumerate(without_types.panels) if panel.is_map and panel.x.label == "head"]
    if name == "head_types" or not maps:
        return
    for index in maps:
        dots = {mark.name: mark for mark in with_types.panels[index].marks if not isinstance(mark, Cells) and mark.name}
        assert list(dots) == [kind.replace("_", "-") for kind in TYPE_COLOURS]
        assert [(y, x) for mark in dots.values() for x, y in zip(mark.x, mark.y, strict=True)] == [
            (0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)
        ]  # fmt: skip
    assert Parts(picture_html(with_types)).texts["li"].count("induction") == 1
    assert with_types.caption.startswith(without_types.caption)
    assert "A dot marks the type of a head." in with_types.caption
