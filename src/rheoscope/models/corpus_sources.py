"""From what a person names to a task: the files of a corpus, tokenised once and used again, or data that a recipe makes itself."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from rheoscope.files import write_file
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
"""Recipes that need no files, by name, and what they learn."""


def check_data(name: str, data: Sequence[Path]) -> None:
    """Refuse files for a recipe that makes its own data, and none for one that does not.

    >>> check_data("digits", [])
    >>> check_data("tiny", [])
    Traceback (most recent call last):
    rheoscope.shapes.RheoscopeError: recipe tiny learns from files, got none; type --data FILE…
    """
    if data and name in GENERATED_TASKS:
        raise RheoscopeError(f"recipe {name} makes its own data, got {data[0]}; leave --data and --held-out out")
    if not data and name not in GENERATED_TASKS:
        raise RheoscopeError(f"recipe {name} learns from files, got none; type --data FILE…")


def load_task(
    name: str,
    recipe: Recipe,
    data: Sequence[Path],
    held_out: Sequence[Path],
    out: Path,
    process: Process,
    progress: OnProgress | None = None,
) -> tuple[Task, Path | None]:
    """What the recipe of a name learns, and the tokenizer of its texts where it has some."""
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
    """The corpus that a recipe learns from: a directory that is already prepared, or files, tokenised into `out`.

    A decoder takes texts, and so does an encoder, with a token in the vocabulary that hides others; an encoder-decoder takes
    two files, a line of one the translation of that line of the other.
    Asked again for the same files it opens what it made; asked for others it refuses. Of many processes the first one
    prepares, the others wait.

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
            raise RheoscopeError(f"{data[0]} is prepared and has its held-out part; leave --held-out out")
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
            f"a translator learns from pairs, got {len(data)} files to train on and {len(held_out)} held out; "
            "type --data SOURCE TARGET [--held-out SOURCE TARGET]"
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
            f"a translator's vocabulary is a number, got {recipe.vocabulary!r}; type --set vocabulary=8000"
        )
    held_out_pair = (held_out[0], held_out[1]) if held_out else None
    prepare_pairs(data[:1], data[1:], out, recipe.vocabulary, held_out_pair, progress)


def _corpus_spec(recipe: Recipe, data: Sequence[Path], held_out: Sequence[Path]) -> dict[str, object]:
    """What a corpus depends on: names and sizes of the files, and how they are cut into tokens."""
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
                f"{out} was made with {name} {_format_spec_value(stored_spec.get(name))}, now "
                f"{_format_spec_value(value)}; type the same, another --out, "
                f"or remove {out}"
            )


def _format_spec_value(value: object) -> str:
    return ", ".join(f"{name} ({size:,} bytes)" for name, size in value) if isinstance(value, list) else str(value)
