"""Pictures can be read on their own: colour scales, labels, and captions that hold on a dark page."""

import re
from pathlib import Path

import rheoscope as rs
from rheoscope.picture.picture import Label
from rheoscope.report.draw.inline import picture_html
from rheoscope.report.draw_result import picture_of
from tests.report.cases import TEXT, small
from tests.report.parts import Parts

SOURCE = Path(__file__).resolve().parents[2] / "src" / "rheoscope"
COLOUR_WORDS = r"(?i)\b(?:white|black|dark|darker|darkest|pale|paler) (?:ones|heads|squares|cells|the)\b"


def test_a_heat_map_has_a_colour_scale() -> None:
    """On the page and with rs.plot. `tests/report/draw/test_renderers.py` checks notebooks."""
    lens = rs.readout(small().trace(TEXT))
    figure = rs.plot(lens)
    bars = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    assert [bar.get_ylabel() for bar in bars] == ["probability", "probability"]
    page = Parts(picture_html(picture_of(lens)))
    assert page.texts["b"] == ["0", "0.5", "1"] * 2


def test_no_caption_names_a_colour_that_a_dark_page_inverts() -> None:
    files = [*SOURCE.glob("*/*/picture.py"), *SOURCE.glob("picture/*.py"), *SOURCE.glob("report/pictures/*.py")]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files if file.name != "dynamics.py")
    assert len(files) > 30
    assert re.findall(COLOUR_WORDS, "the darker heads, pale cells and darkest the") != []
    assert re.findall(COLOUR_WORDS, text) == []
    assert not re.search(r"(?i)\bthe darker\b|\bdarkest\b", text)


def test_paths_of_tokens_have_labels() -> None:
    panel = picture_of(rs.trajectory(small().trace(TEXT))).panels[0]
    labels = [mark.text for mark in panel.marks if isinstance(mark, Label)]
    assert labels[:2] == ["<|endoftext|>", "."]
    assert len(labels) > 4
