"""From named files to a corpus: prepared once, reused, never mixed up."""

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


def load(folder: Path, names: list[str], held_out: tuple[str, ...] = (), recipe: Any = CHARACTERS) -> Any:
    files = [[folder / name for name in part] for part in (names, held_out)]
    return load_corpus(recipe, files[0], files[1], folder / "data", HERE)


def test_the_same_files_are_tokenised_once(files: Path) -> None:
    load(files, ["a.txt", "b.txt"])
    written_at = (files / "data" / "train.bin").stat().st_mtime_ns
    reopened = load(files, ["a.txt", "b.txt"])
    assert (files / "data" / "train.bin").stat().st_mtime_ns == written_at
    assert len(reopened.held_out) == pytest.approx(0.1 * 22 * 40, abs=1)


def test_a_prepared_directory_is_opened_without_a_copy(files: Path) -> None:
    corpus = load(files, ["a.txt"])
    other = load_corpus(CHARACTERS, [files / "data"], [], files / "elsewhere", HERE)
    assert other.vocabulary == corpus.vocabulary
    assert not (files / "elsewhere").exists()
    with pytest.raises(RheoscopeError, match="is a prepared corpus with a held-out part of its own; omit --held-out"):
        load_corpus(CHARACTERS, [files / "data"], [files / "b.txt"], files / "elsewhere", HERE)


def test_held_out_files_become_the_held_out_part(files: Path) -> None:
    corpus = load(files, ["a.txt", "b.txt"], ("c.txt.gz",))
    assert isinstance(corpus, Corpus)
    assert corpus.held_out_bytes == 200
    assert len(corpus.held_out) == 201  # every character, and the first token of the document
    assert len(corpus.train) == 40 * (20 + 22) + 2


def test_pairs_of_files_become_a_pair_corpus(files: Path) -> None:
    assert len(load(files, ["en", "de"], recipe=PAIRS).held_out) == 1
    corpus = load_corpus(PAIRS, [files / "en", files / "de"], [files / "en", files / "de"], files / "more", HERE)
    assert (len(corpus.train), len(corpus.held_out)) == (60, 60)  # type: ignore[arg-type]


def test_an_incomplete_corpus_is_prepared_again(files: Path) -> None:
    load(files, ["a.txt"])
    (files / "data" / "corpus.json").rename(files / "data" / IN_PROGRESS)
    assert len(load(files, ["b.txt"]).train) > 0


@pytest.mark.parametrize(
    ("names", "held_out", "recipe", "pattern"),
    [
        (
            ["b.txt"],
            (),
            CHARACTERS,
            r"prepared with data a.txt \(800 bytes\), now got b.txt \(880 bytes\); choose the same",
        ),
        (["a.txt"], ("b.txt",), CHARACTERS, "prepared with held out 0.1, now got b.txt"),
        (["a.txt"], (), CHARACTERS.with_changes(vocabulary=300), "prepared with vocabulary characters, now got 300"),
    ],
)
def test_other_data_is_refused(
    names: list[str], held_out: tuple[str, ...], recipe: Any, pattern: str, files: Path
) -> None:
    load(files, ["a.txt"])
    with pytest.raises(RheoscopeError, match=pattern):
        load(files, names, held_out, recipe)


def test_a_file_that_grew_is_refused(files: Path) -> None:
    load(files, ["a.txt"])
    (files / "a.txt").write_text("longer. " * 200)
    with pytest.raises(
        RheoscopeError, match=r"was prepared with data a.txt \(800 bytes\), now got a.txt \(1,600 bytes\)"
    ):
        load(files, ["a.txt"])


def test_files_without_text_are_refused(files: Path) -> None:
    (files / "empty.txt").write_text("")
    (files / "binary.txt").write_bytes(bytes(range(256)))
    patterns = {
        "empty.txt": "is empty, expected text",
        "binary.txt": r"is not text \(byte 0 is NUL\)",
        "no.txt": "there is no file",
    }
    for name, pattern in patterns.items():
        with pytest.raises(RheoscopeError, match=pattern):
            load(files, [name])
    assert len(load(files, ["a.txt"]).train) > 0  # the failures left nothing behind


@pytest.mark.parametrize(("names", "held_out"), [(["en"], ()), (["en", "de", "en"], ()), (["en", "de"], ("en",))])
def test_a_translator_needs_two_files(names: list[str], held_out: tuple[str, ...], files: Path) -> None:
    with pytest.raises(RheoscopeError, match="type --data SOURCE TARGET"):
        load(files, names, held_out, PAIRS)


def test_a_translator_refuses_a_vocabulary_of_characters(files: Path) -> None:
    with pytest.raises(RheoscopeError, match="the vocabulary of a translator must be a number, got 'characters'"):
        load(files, ["en", "de"], recipe=PAIRS.with_changes(vocabulary="characters"))


def test_recipes_that_generate_their_data_refuse_files(files: Path) -> None:
    task, tokenizer = load_task("two_moons", two_moons(), [], [], files / "data", HERE)
    assert isinstance(task, TwoMoonsTask)
    assert tokenizer is None
    assert not (files / "data").exists()
    with pytest.raises(RheoscopeError, match="recipe two_moons generates its own data, got the file "):
        load_task("two_moons", two_moons(), [files / "a.txt"], [], files / "data", HERE)
    with pytest.raises(
        RheoscopeError, match="recipe tiny learns from files, got none; on the command line type --data"
    ):
        load_task("tiny", CHARACTERS, [], [], files / "data", HERE)
    task, tokenizer = load_task("tiny", CHARACTERS, [files / "a.txt"], [], files / "data", HERE)
    assert isinstance(task, NextTokenTask)
    assert tokenizer == files / "data" / "tokenizer.json"


def test_every_generated_task_suits_its_recipe() -> None:
    for name, make_task in GENERATED_TASKS.items():
        make_task().check(recipe_by_name(name))
        assert make_task().vocabulary == recipe_by_name(name).config.vocabulary
