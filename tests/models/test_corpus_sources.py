"""From named files to a corpus: made once, used again, never mixed up."""

import gzip
from pathlib import Path
from typing import Any

import pytest
import torch

from rheoscope.models.corpus_sources import GENERATED_TASKS, load_corpus, load_task
from rheoscope.models.recipes import recipe_by_name, tiny, two_moons
from rheoscope.models.task import NextTokenTask
from rheoscope.models.token_corpus import Corpus
from rheoscope.models.token_files import IN_PROGRESS
from rheoscope.models.train import Process
from rheoscope.models.two_moons import TwoMoonsTask
from rheoscope.shapes import RheoscopeError

HERE = Process(torch.device("cpu"))
CHARACTERS = tiny().with_changes(vocabulary="characters", held_out=0.1)
PAIRS = recipe_by_name("translation").with_changes(vocabulary=300)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("to be or not to be. " * 40)
    (tmp_path / "b.txt").write_text("that is the question. " * 40)
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"whether tis nobler. " * 10))
    (tmp_path / "en").write_text("a dog\n" * 60)
    (tmp_path / "de").write_text("ein Hund\n" * 60)
    return tmp_path


def made(folder: Path, names: list[str], held_out: tuple[str, ...] = (), of: Any = CHARACTERS) -> Any:
    return load_corpus(of, [folder / n for n in names], [folder / n for n in held_out], folder / "data", HERE)


def test_the_same_files_are_tokenised_once(files: Path) -> None:
    made(files, ["a.txt", "b.txt"])
    written = (files / "data" / "train.bin").stat().st_mtime_ns
    again = made(files, ["a.txt", "b.txt"])
    assert (files / "data" / "train.bin").stat().st_mtime_ns == written
    assert len(again.held_out) == pytest.approx(0.1 * 22 * 40, abs=1)


def test_a_prepared_directory(files: Path) -> None:
    corpus = made(files, ["a.txt"])
    other = load_corpus(CHARACTERS, [files / "data"], [], files / "elsewhere", HERE)
    assert other.vocabulary == corpus.vocabulary
    assert not (files / "elsewhere").exists()
    with pytest.raises(RheoscopeError, match="is prepared and has its held-out part; leave --held-out out"):
        load_corpus(CHARACTERS, [files / "data"], [files / "b.txt"], files / "elsewhere", HERE)


def test_files_to_hold_out(files: Path) -> None:
    corpus = made(files, ["a.txt", "b.txt"], ("c.txt.gz",))
    assert isinstance(corpus, Corpus)
    assert corpus.held_out_bytes == 200
    assert len(corpus.held_out) == 201  # each character, and the document's first token
    assert len(corpus.train) == 40 * (20 + 22) + 2


def test_pairs(files: Path) -> None:
    assert len(made(files, ["en", "de"], of=PAIRS).held_out) == 1
    corpus = load_corpus(PAIRS, [files / "en", files / "de"], [files / "en", files / "de"], files / "more", HERE)
    assert (len(corpus.train), len(corpus.held_out)) == (60, 60)  # type: ignore[arg-type]


def test_half_made_data_is_made_again(files: Path) -> None:
    made(files, ["a.txt"])
    (files / "data" / "corpus.json").rename(files / "data" / IN_PROGRESS)
    assert len(made(files, ["b.txt"]).train) > 0


@pytest.mark.parametrize(
    ("names", "held_out", "of", "says"),
    [
        (["b.txt"], (), CHARACTERS, r"was made with data a.txt \(800 bytes\), now b.txt \(880 bytes\); type the same"),
        (["a.txt"], ("b.txt",), CHARACTERS, "was made with held out 0.1, now b.txt"),
        (["a.txt"], (), CHARACTERS.with_changes(vocabulary=300), "was made with vocabulary characters, now 300"),
    ],
)
def test_other_data_is_refused(names: list[str], held_out: tuple[str, ...], of: Any, says: str, files: Path) -> None:
    made(files, ["a.txt"])
    with pytest.raises(RheoscopeError, match=says):
        made(files, names, held_out, of)


def test_a_file_that_grew_is_refused(files: Path) -> None:
    made(files, ["a.txt"])
    (files / "a.txt").write_text("longer. " * 200)
    with pytest.raises(RheoscopeError, match=r"was made with data a.txt \(800 bytes\), now a.txt \(1,600 bytes\)"):
        made(files, ["a.txt"])


def test_files_that_are_no_text(files: Path) -> None:
    (files / "empty.txt").write_text("")
    (files / "binary.txt").write_bytes(bytes(range(256)))
    wrong = {
        "empty.txt": "is empty, expected text",
        "binary.txt": "is no text: byte 0 is NUL",
        "no.txt": "there is no file",
    }
    for name, says in wrong.items():
        with pytest.raises(RheoscopeError, match=says):
            made(files, [name])
    made(files, ["a.txt"])  # what failed left nothing in the way


@pytest.mark.parametrize(("names", "held_out"), [(["en"], ()), (["en", "de", "en"], ()), (["en", "de"], ("en",))])
def test_a_translator_needs_two_files(names: list[str], held_out: tuple[str, ...], files: Path) -> None:
    with pytest.raises(RheoscopeError, match="type --data SOURCE TARGET"):
        made(files, names, held_out, PAIRS)


def test_a_translator_of_characters(files: Path) -> None:
    with pytest.raises(RheoscopeError, match="a translator's vocabulary is a number, got 'characters'"):
        made(files, ["en", "de"], of=PAIRS.with_changes(vocabulary="characters"))


def test_recipes_that_make_their_data_take_no_files(files: Path) -> None:
    task, tokenizer = load_task("two_moons", two_moons(), [], [], files / "data", HERE)
    assert isinstance(task, TwoMoonsTask)
    assert tokenizer is None
    assert not (files / "data").exists()
    with pytest.raises(RheoscopeError, match="recipe two_moons makes its own data, got "):
        load_task("two_moons", two_moons(), [files / "a.txt"], [], files / "data", HERE)
    with pytest.raises(RheoscopeError, match="recipe tiny learns from files, got none; type --data"):
        load_task("tiny", CHARACTERS, [], [], files / "data", HERE)
    task, tokenizer = load_task("tiny", CHARACTERS, [files / "a.txt"], [], files / "data", HERE)
    assert isinstance(task, NextTokenTask)
    assert tokenizer == files / "data" / "tokenizer.json"


def test_what_makes_its_data_is_a_recipe() -> None:
    for name, made in GENERATED_TASKS.items():
        made().check(recipe_by_name(name))
        assert made().vocabulary == recipe_by_name(name).config.vocabulary
