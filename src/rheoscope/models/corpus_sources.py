"""From a recipe name and files to a task: corpora are tokenised once and reused, or a recipe generates its data."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from rheoscope.files import write_file
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message, join
from rheoscope.models.config import set_fields
from rheoscope.models.digits import DigitsTask
from rheoscope.models.recipes import Recipe
from rheoscope.models.sentence_pairs import PairCorpus, prepare_pairs
from rheoscope.models.task import Task, make_task
from rheoscope.models.text_files import END_OF_TEXT
from rheoscope.models.token_corpus import MASKED_SPECIALS, Corpus, OnProgress, prepare
from rheoscope.models.token_files import MANIFEST, SPEC_FILE, writing_corpus
from rheoscope.models.train import Process
from rheoscope.models.two_moons import TwoMoonsTask
from rheoscope.shapes import RheoscopeError

GENERATED_TASKS: dict[str, Callable[[], Task]] = {"two_moons": TwoMoonsTask, "digits": DigitsTask}
"""The tasks of recipes that need no files, by recipe name."""


def check_data(name: str, data: Sequence[Path]) -> None:
    """Raise if files are given for a recipe that generates its data, or none for a recipe that needs them.

    >>> check_data("digits", [])
    >>> check_data("tiny", [])
    Traceback (most recent call last):
    rheoscope.shapes.RheoscopeError: recipe tiny learns from files, got none; on the command line type --data FILE…
    """
    if data and name in GENERATED_TASKS:
        raise RheoscopeError(
            Message(
                "recipe {recipe} generates its own data, got the file {file}; omit --data and --held-out",
                recipe=name,
                file=str(data[0]),
            )
        )
    if not data and name not in GENERATED_TASKS:
        raise RheoscopeError(
            Message("recipe {recipe} learns from files, got none", recipe=name), Advice("", "--data FILE…")
        )


def load_task(
    name: str,
    recipe: Recipe,
    data: Sequence[Path],
    held_out: Sequence[Path],
    out: Path,
    process: Process,
    progress: OnProgress | None = None,
) -> tuple[Task, Path | None]:
    """The task of a recipe, and the tokenizer of its texts if it has any."""
    check_data(name, [*data, *held_out])
    if name in GENERATED_TASKS:
        return GENERATED_TASKS[name](), None
    corpus = load_corpus(recipe, data, held_out, out, process, progress)
    return make_task(corpus, recipe), corpus.tokenizer


def load_corpus(
    recipe: Recipe,
    data: Sequence[Path],
    held_out: Sequence[Path],
    out: Path,
    process: Process,
    progress: OnProgress | None = None,
) -> Corpus | PairCorpus:
    """The corpus that a recipe learns from: a prepared directory, or files that are tokenised into `out`.

    A decoder and an encoder take texts. The vocabulary of an encoder also has a mask token. An encoder-decoder takes two files
    whose lines are translations of each other. A second call with the same files opens the existing corpus, and other files raise.
    The first of several processes prepares the corpus while the others wait.

    >>> import tempfile, torch
    >>> from rheoscope.models.recipes import tiny
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("to be or not to be. " * 50)
    >>> recipe, here = tiny().with_changes(vocabulary="characters"), Process(torch.device("cpu"))
    >>> load_corpus(recipe, [folder / "a.txt"], [], folder / "data", here).vocabulary
    9
    """
    is_translation = recipe.config.form == "encoder-decoder"
    if len(data) == 1 and data[0].is_dir():
        if held_out:
            raise RheoscopeError(
                Message(
                    "{directory} is a prepared corpus with a held-out part of its own; omit --held-out",
                    directory=str(data[0]),
                )
            )
        out = data[0]
    elif process.is_first:
        _prepare(recipe, data, held_out, out, is_translation, progress)
    process.barrier()
    return PairCorpus.open(out) if is_translation else Corpus.open(out)


def _prepare(
    recipe: Recipe,
    data: Sequence[Path],
    held_out: Sequence[Path],
    out: Path,
    is_translation: bool,
    progress: OnProgress | None,
) -> None:
    if is_translation and (len(data) != 2 or len(held_out) not in (0, 2)):
        raise RheoscopeError(
            Message(
                "a translator needs two training files and two held-out files or none, got {n_data} and {n_held_out}",
                n_data=len(data),
                n_held_out=len(held_out),
            ),
            Advice("", "--data SOURCE TARGET [--held-out SOURCE TARGET]"),
        )
    spec = _corpus_spec(recipe, data, held_out)
    if (out / MANIFEST).is_file():
        _check_same_spec(out, spec)
        return
    with writing_corpus(out):
        write_file(out / SPEC_FILE, lambda file: file.write_text(json.dumps(spec, indent=1) + "\n"))
        _tokenise(recipe, data, held_out, out, is_translation, progress)


def _tokenise(
    recipe: Recipe,
    data: Sequence[Path],
    held_out: Sequence[Path],
    out: Path,
    is_translation: bool,
    progress: OnProgress | None,
) -> None:
    if not is_translation:
        specials = MASKED_SPECIALS if recipe.config.form == "encoder" else (END_OF_TEXT,)
        held_out_source = held_out or recipe.held_out
        prepare(data, out, recipe.vocabulary, held_out=held_out_source, progress=progress, specials=specials)
        return
    if not isinstance(recipe.vocabulary, int):
        raise RheoscopeError(
            Message(
                "the vocabulary of a translator must be a number, got {vocabulary!r}", vocabulary=recipe.vocabulary
            ),
            set_fields(vocabulary=8000),
        )
    held_out_pair = (held_out[0], held_out[1]) if held_out else None
    prepare_pairs(data[:1], data[1:], out, recipe.vocabulary, held_out_pair, progress)


def _corpus_spec(recipe: Recipe, data: Sequence[Path], held_out: Sequence[Path]) -> dict[str, object]:
    """What a corpus depends on: names and sizes of its files, the held-out part and the vocabulary."""
    sizes = [[(file.name, file.stat().st_size if file.is_file() else 0) for file in part] for part in (data, held_out)]
    return json.loads(
        json.dumps({"data": sizes[0], "held out": sizes[1] or recipe.held_out, "vocabulary": recipe.vocabulary})
    )


def _check_same_spec(out: Path, spec: dict[str, object]) -> None:
    file = out / SPEC_FILE
    stored_spec = json.loads(file.read_text()) if file.is_file() else {}
    for name, value in spec.items():
        if stored_spec.get(name) != value:
            raise RheoscopeError(
                Message(
                    "{directory} was prepared with {name} {stored}, now got {new}; choose the same, another --out, or remove {directory}",
                    directory=str(out),
                    name=name,
                    stored=_format_spec_value(stored_spec.get(name)),
                    new=_format_spec_value(value),
                )
            )


def _format_spec_value(value: object) -> str:
    if not isinstance(value, list):
        return str(value)
    return join(", ", [Message("{file} ({size:,} bytes)", file=name, size=size) for name, size in value])
