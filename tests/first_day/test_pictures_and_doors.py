"""The first day of someone who looks: pictures that can be read by themselves, and a front door that shows what is inside."""

import re
from pathlib import Path

import rheoscope as rs
from rheoscope.report.draw.inline import figures
from rheoscope.report.drawing import picture_of
from rheoscope.report.picture import Word
from tests.report.cases import TEXT, small
from tests.report.parts import Parts

ROOT = Path(__file__).resolve().parents[2]
PLOTS = ROOT / "src" / "rheoscope" / "report" / "plot"


def test_a_heat_map_says_which_colour_is_how_much() -> None:
    """On the page and with rs.plot; in a notebook, `tests/report/draw/test_hands.py` looks."""
    lens = rs.readout(small().trace(TEXT))
    figure = rs.plot(lens)
    bars = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    assert [bar.get_ylabel() for bar in bars] == ["probability", "probability"]
    page = Parts(figures(picture_of(lens)))
    assert page.texts["b"] == ["0", "0.5", "1"] * 2


def test_no_caption_names_a_colour_that_a_dark_page_turns_round() -> None:
    told = "\n".join(file.read_text(encoding="utf-8") for file in PLOTS.glob("*.py") if file.name != "dynamics.py")
    assert (
        re.findall(r"(?i)\b(?:white|black|dark|darker|darkest|pale|paler) (?:ones|heads|squares|cells|the)\b", told)
        == []
    )
    assert not re.search(r"(?i)\bthe darker\b|\bdarkest\b", told)


def test_paths_of_tokens_have_names() -> None:
    panel = picture_of(rs.trajectory(small().trace(TEXT))).panels[0]
    names = [mark.text for mark in panel.marks if isinstance(mark, Word)]
    assert names[:2] == ["<|endoftext|>", "."]
    assert len(names) > 4
