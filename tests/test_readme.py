"""The README is short, its links and pictures exist, and its output is what the command prints."""

import re
from pathlib import Path
from runpy import run_path

import pytest

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
    words, numbers = words_and_numbers(script["first_answers"](script["sample"]()))
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
