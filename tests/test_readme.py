"""The front page of the project: the README, its output and links, the citation, the reference and the gallery."""

import re
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest

import rheoscope as rs
from rheoscope import catalogue
from rheoscope.report.draw_result import picture_of
from tests.report.parts import Parts

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NUMBER = r"-?\d*\.?\d+"


def words_and_numbers(text: str) -> tuple[str, list[float]]:
    """The text in one line with `#` for each number, and the numbers."""
    words = re.sub(rf"{NUMBER}|\s+", lambda match: " " if match[0].isspace() else "#", text)
    return words, [float(number) for number in re.findall(NUMBER, text)]


def test_the_output_in_the_readme_is_that_of_the_command() -> None:
    """Word for word. Numbers may differ by the rounding of another processor. `make readme` writes them again."""
    script = run_path(str(ROOT / "examples" / "front_door.py"))
    words, numbers = words_and_numbers(script["story_text"](script["sample"]()))
    begin, end = script["MARKERS"]
    block = README.split(begin, 1)[1].split(end, 1)[0]
    shown_words, shown_numbers = words_and_numbers(block.split("\n", 3)[3].rsplit("\n…\n```", 1)[0])
    assert shown_words == words
    assert shown_numbers == pytest.approx(numbers, rel=0.05, abs=0.02)


def test_the_readme_is_short_and_has_one_picture_for_light_and_dark() -> None:
    assert len(README.splitlines()) <= 120
    assert len(re.findall("<picture>|!\\[", README)) == 1
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', README)
    assert len(pictures) == 2
    assert all((ROOT / picture).stat().st_size < 100_000 for picture in pictures)


def test_links_of_the_readme_exist() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if not link.startswith("http")]
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_first_page_of_the_docs_does_not_repeat_the_readme() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    readme_sentences = {sentence.strip() for sentence in re.split(r"(?<=\.)\s", README) if len(sentence.split()) > 8}
    index_sentences = {sentence.strip() for sentence in re.split(r"(?<=\.)\s", index) if len(sentence.split()) > 8}
    assert len(readme_sentences & index_sentences) <= 1


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


def test_live_pages_are_framed_where_they_exist(tmp_path: Path) -> None:
    """`make live` writes every live page that the documentation has, and no other."""
    hook = run_path(str(ROOT / "docs" / "_hooks" / "live_pages.py"))
    pages = {file.relative_to(ROOT / "docs"): file.read_text(encoding="utf-8") for file in ROOT.glob("docs/**/*.md")}
    placed = {match[1] for text in pages.values() for match in hook["LIVE"].finditer(text)}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert placed == set(re.findall(r"--export docs/live/(\w+)\.html", makefile)) != set()
    fallback = "<!-- live flow: A <title>. -->\n![a picture](a.png)\n<!-- /live -->"
    page = SimpleNamespace(url="guide/flow.html")
    assert hook["on_page_markdown"](fallback, page=page, folder=tmp_path) == "![a picture](a.png)"
    (tmp_path / "flow.html").touch()
    framed = hook["on_page_markdown"](fallback, page=page, folder=tmp_path)
    assert '<iframe src="../live/flow.html" title="A &lt;title&gt;." loading="lazy" sandbox="allow-scripts ' in framed
    assert "![a picture](a.png)" in framed


def test_the_gallery_shows_every_analysis() -> None:
    """One picture is drawn here. `make docs` draws all."""
    hook = run_path(str(ROOT / "docs" / "_hooks" / "gallery.py"))
    page = hook["on_page_markdown"]((ROOT / "docs" / "gallery.md").read_text(encoding="utf-8"), page=None)
    assert re.findall(r'data-picture="(\w+)"', page) == catalogue.analysis_names()
    html = hook["on_post_page"]('<p><div data-picture="geometry_kept"></div></p>', page=None)
    assert Parts(html).count("svg") == len(picture_of(rs.geometry_kept(hook["opened"]()["trace"])).panels)
