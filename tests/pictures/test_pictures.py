"""Every analysis of the catalogue has a picture that all three hands draw: its own, and the one that follows from its fields."""

from functools import cache

import numpy as np
import pytest

from rheoscope import catalogue
from rheoscope.picture import field_panels
from rheoscope.picture.head_map import TYPE_COLOURS
from rheoscope.picture.picture import Cells, Line, Picture
from rheoscope.report.draw.inline import picture_html
from rheoscope.report.draw_result import picture_of
from tests.pictures.cases import by_three_hands, drawn, found, model, on_a_page, planted
from tests.report.parts import Parts

DRAWN = [name for name in catalogue.analysis_names() if "draws" in catalogue.analysis_by_name(name).settings]
NAMES = [*catalogue.analysis_names(), *(["surgery_per_head"] if "surgery" in catalogue.ANALYSIS_MODULES else [])]


@cache
def worded(name: str) -> Picture:
    return drawn(name, token_strings=model().token_strings)


@pytest.mark.parametrize("name", NAMES)
def test_three_hands_draw_every_panel(name: str) -> None:
    by_three_hands(worded(name))


@pytest.mark.parametrize("name", NAMES)
def test_what_follows_from_the_fields_tells_them_all(name: str) -> None:
    """Where an analysis has no picture of its own, three hands have drawn this one above."""
    picture = field_panels.picture(found(name))
    on_a_page(picture)
    told = picture.caption + "".join(panel.title + panel.about for panel in picture.panels)
    assert all(field_panels.field_title(field) in told for field in field_panels.main_fields(found(name)))


@pytest.mark.parametrize("name", DRAWN)
def test_an_answer_without_a_null_is_drawn_without_it(name: str) -> None:
    """`draws=0` leaves the null out: no line of it is drawn, and nothing falls over what is not there."""
    bare = found(name, draws=0)
    assert not bare.attrs["draws"]
    picture = picture_of(bare)
    on_a_page(picture)
    on_a_page(field_panels.picture(bare))
    for line in (mark for panel in picture.panels for mark in panel.marks if isinstance(mark, Line)):
        assert line.colour != "null" or np.isfinite(np.asarray(line.y, dtype=float)).any(), line.name


@pytest.mark.parametrize("name", NAMES)
def test_types_of_heads_stand_on_every_map_with_one_key(name: str) -> None:
    types = planted()
    bare, typed = drawn(name), drawn(name, types=types)
    assert not bare.legend or name == "head_types"
    maps = [at for at, panel in enumerate(bare.panels) if panel.is_map and panel.x.label == "head"]
    if name == "head_types" or not maps:
        return
    for at in maps:
        dots = {mark.name: mark for mark in typed.panels[at].marks if not isinstance(mark, Cells) and mark.name}
        assert list(dots) == [kind.replace("_", "-") for kind in TYPE_COLOURS]
        assert [(y, x) for mark in dots.values() for x, y in zip(mark.x, mark.y, strict=True)] == [
            (0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)
        ]  # fmt: skip
    assert Parts(picture_html(typed)).texts["li"].count("induction") == 1
    assert typed.caption.startswith(bare.caption)
    assert "Dots are types" in typed.caption
