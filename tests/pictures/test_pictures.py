"""Every analysis of the catalogue has a picture that all three hands draw: its own, and the one that follows from its fields."""

from functools import cache

import numpy as np
import pytest

from rheoscope import catalogue
from rheoscope.picture import field_panels
from rheoscope.picture.head_map import COLOURS
from rheoscope.picture.picture import Cells, Line, Picture
from rheoscope.picture.token_labels import shown
from rheoscope.report.draw.inline import figures
from rheoscope.report.draw_result import picture_of
from tests.pictures.cases import GROUPS, TEXT, by_three_hands, drawn, found, model, on_a_page, planted
from tests.report.parts import Parts
from tests.studio.tongue import LANGUAGES, Tongue, said_in

DRAWN = [name for name in catalogue.names() if "draws" in catalogue.analysis(name).settings]
NAMES = [*catalogue.names(), *(["each_head"] if "surgery" in catalogue.TABLE else [])]


@cache
def worded(name: str) -> Picture:
    return drawn(name, words=model().words)


@pytest.mark.parametrize("name", NAMES)
def test_three_hands_draw_every_panel(name: str) -> None:
    by_three_hands(worded(name))


@pytest.mark.parametrize("name", NAMES)
def test_what_follows_from_the_fields_tells_them_all(name: str) -> None:
    """Where an analysis has no picture of its own, three hands have drawn this one above."""
    picture = field_panels.picture(found(name))
    on_a_page(picture)
    told = picture.caption + "".join(panel.title + panel.about for panel in picture.panels)
    assert all(field_panels.in_words(field) in told for field in field_panels.own_fields(found(name)))


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", NAMES)
def test_every_word_of_a_picture_is_known_in_every_language(name: str, language: str) -> None:
    """All but what the text, the model and the settings bring: tokens, words asked about."""
    left = {text for text in texts_of(worded(name)) if tongue(language).best(text)[1] >= 1}
    assert not left, f"{language}.ts does not say all of:\n" + "\n".join(sorted(left))


@cache
def tongue(language: str) -> Tongue:
    words = {shown(token) for token in model().trace(TEXT).tokens} | {"bank", "bat", *GROUPS, "The keys", "A dog"}
    return Tongue({word: word for word in words} | said_in(language) | {"{n} {0}": "{n} {0}"})


def texts_of(picture: Picture) -> set[str]:
    """What stands on a picture, but for words on it and in its squares, which are tokens."""
    said = {picture.title, picture.caption}
    for panel in picture.panels:
        said |= {panel.title, panel.about, panel.x.label, panel.y.label, *panel.x.names, *panel.y.names}
        for mark in panel.marks:
            tips = [tip for row in mark.tips for tip in row] if isinstance(mark, Cells) else getattr(mark, "tips", ())
            said |= {getattr(mark, "name", ""), getattr(mark, "tip", ""), *tips}
    return said


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
    assert not bare.key or name == "head_types"
    maps = [at for at, panel in enumerate(bare.panels) if panel.cells and panel.x.label == "head"]
    if name == "head_types" or not maps:
        return
    for at in maps:
        dots = {mark.name: mark for mark in typed.panels[at].marks if not isinstance(mark, Cells) and mark.name}
        assert list(dots) == [kind.replace("_", "-") for kind in COLOURS]
        assert [(y, x) for mark in dots.values() for x, y in zip(mark.x, mark.y, strict=True)] == [
            (0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)
        ]  # fmt: skip
    assert Parts(figures(typed)).texts["li"].count("induction") == 1
    assert typed.caption.startswith(bare.caption)
    assert "Dots are types" in typed.caption
