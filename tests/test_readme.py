"""The front page of the project: the README, its first screen and links, the citation, the reference and the gallery."""

import re
from pathlib import Path
from runpy import run_path

import pytest

import rheoscope as rs
from rheoscope import catalogue
from rheoscope.report.draw_result import picture_of
from tests.report.parts import Parts

ROOT = Path(__file__).resolve().parents[1]


def verdict_block(page: str) -> str:
    """The part of a page between its marks."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return text.split("<!-- verdicts -->\n", 1)[1].split("<!-- /verdicts -->", 1)[0]


def split_numbers(text: str) -> tuple[str, list[float]]:
    """The text on one line with # for every number, and the numbers."""
    number = r"-?\d*\.?\d+"
    words = re.sub(rf"{number}|\s+", lambda match: " " if match[0].isspace() else "#", text)
    return words, [float(match) for match in re.findall(number, text)]


def test_the_verdicts_of_the_readme_are_those_of_the_terminal() -> None:
    """Word for word. Numbers may differ by the rounding of another processor. `make readme` writes them again."""
    front_door = run_path(str(ROOT / "examples" / "front_door.py"))
    expected_words, expected_numbers = split_numbers(front_door["verdicts"](front_door["sample"](), 100))
    for page in front_door["PAGES"]:
        words, numbers = split_numbers(verdict_block(page).split("\n", 2)[2].rsplit("\n```", 1)[0])
        assert words == expected_words, page
        assert numbers == pytest.approx(expected_numbers, rel=0.05, abs=0.02), page


def test_the_readme_is_short_and_opens_with_one_picture_for_light_and_dark() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 150
    assert len(re.findall("<picture>|!\\[", readme)) == 1
    for name in re.findall(r'(?:src|srcset)="([^"]+)"', readme):
        assert (ROOT / name).is_file()
        assert (ROOT / name).stat().st_size < 100_000
    assert "## The tree" not in readme


def test_links_of_the_readme_lead_to_files() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", readme) if not link.startswith("http")]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_citation_names_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    assert version is not None
    assert f"version: {version[1]}\n" in citation


def test_the_reference_shows_every_public_name() -> None:
    hook = run_path(str(ROOT / "docs" / "_hooks" / "reference.py"))
    grouped_names = [name for names in hook["groups"]().values() for name in names]
    assert sorted(grouped_names) == sorted(rs.__all__)
    assert re.findall(r"^ +heading: rs\.(\w+)$", hook["as_page"](), re.M) == grouped_names
    assert hook["MARK"] in (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")


def test_the_gallery_shows_every_analysis() -> None:
    """One picture is drawn here. `make docs` draws all."""
    hook = run_path(str(ROOT / "docs" / "_hooks" / "gallery.py"))
    page = hook["on_page_markdown"]((ROOT / "docs" / "gallery.md").read_text(encoding="utf-8"), page=None)
    assert re.findall(r'data-picture="(\w+)"', page) == catalogue.analysis_names()
    html = hook["on_post_page"]('<p><div data-picture="geometry_kept"></div></p>', page=None)
    assert Parts(html).count("svg") == len(picture_of(rs.geometry_kept(hook["opened"]()["trace"])).panels)
