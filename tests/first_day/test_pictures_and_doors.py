"""The first day of someone who looks: pictures that can be read by themselves, and a front door that shows what is inside."""

import re
from pathlib import Path
from runpy import run_path

import pytest

import rheoscope as rs
from rheoscope import catalogue
from rheoscope.picture.picture import Label
from rheoscope.report.draw.inline import picture_html
from rheoscope.report.draw_result import picture_of
from tests.report.cases import TEXT, small
from tests.report.parts import Parts

ROOT = Path(__file__).resolve().parents[2]
PLOTS = ROOT / "src" / "rheoscope" / "report" / "plot"


def test_a_heat_map_says_which_colour_is_how_much() -> None:
    """On the page and with rs.plot; in a notebook, `tests/report/draw/test_renderers.py` looks."""
    lens = rs.readout(small().trace(TEXT))
    figure = rs.plot(lens)
    bars = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    assert [bar.get_ylabel() for bar in bars] == ["probability", "probability"]
    page = Parts(picture_html(picture_of(lens)))
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
    names = [mark.text for mark in panel.marks if isinstance(mark, Label)]
    assert names[:2] == ["<|endoftext|>", "."]
    assert len(names) > 4


# The front door


def block(page: str) -> str:
    return (
        (ROOT / page).read_text(encoding="utf-8").split("<!-- verdicts -->\n", 1)[1].split("<!-- /verdicts -->", 1)[0]
    )


def numbers_of(told: str) -> tuple[str, list[float]]:
    """What is said with its numbers left out, in one line, and the numbers."""
    number = r"-?\d*\.?\d+"
    return re.sub(rf"{number}|\s+", lambda found: " " if found[0].isspace() else "#", told), [
        float(found) for found in re.findall(number, told)
    ]


def test_the_verdicts_of_the_readme_are_those_of_the_terminal() -> None:
    """To the word; numbers may differ by what another processor rounds otherwise. `make readme` writes them anew."""
    door = run_path(str(ROOT / "examples" / "front_door.py"))
    told = numbers_of(door["verdicts"](door["sample"](), 100))
    for page in door["PAGES"]:
        words, numbers = numbers_of(block(page).split("\n", 2)[2].rsplit("\n```", 1)[0])
        assert words == told[0], page
        assert numbers == pytest.approx(told[1], rel=0.05, abs=0.02), page


def test_the_readme_is_short_and_opens_with_one_picture_for_light_and_dark() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 150
    assert len(re.findall("<picture>|!\\[", readme)) == 1
    for name in re.findall(r'(?:src|srcset)="([^"]+)"', readme):
        assert (ROOT / name).is_file()
        assert (ROOT / name).stat().st_size < 100_000
    assert "## The tree" not in readme


def test_links_of_the_readme_lead_somewhere() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    there = [link for link in re.findall(r"\]\(([^)#]+)\)", readme) if not link.startswith("http")]
    assert there
    assert [link for link in there if not (ROOT / link).exists()] == []


def test_how_to_cite_names_this_version() -> None:
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    assert version is not None
    assert f"version: {version[1]}\n" in cited


def test_the_reference_shows_every_public_name() -> None:
    hook = run_path(str(ROOT / "docs" / "_hooks" / "reference.py"))
    grouped = [name for names in hook["groups"]().values() for name in names]
    assert sorted(grouped) == sorted(rs.__all__)
    assert re.findall(r"^ +heading: rs\.(\w+)$", hook["as_page"](), re.M) == grouped
    assert hook["MARK"] in (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")


def test_the_gallery_shows_every_analysis_by_the_lines_above_its_picture() -> None:
    """One of them drawn; `make docs` draws all."""
    hook = run_path(str(ROOT / "docs" / "_hooks" / "gallery.py"))
    page = hook["on_page_markdown"]((ROOT / "docs" / "gallery.md").read_text(encoding="utf-8"), page=None)
    assert re.findall(r'data-picture="(\w+)"', page) == catalogue.analysis_names()
    drawn = hook["on_post_page"]('<p><div data-picture="geometry_kept"></div></p>', page=None)
    assert Parts(drawn).count("svg") == len(picture_of(rs.geometry_kept(hook["opened"]()["trace"])).panels)
