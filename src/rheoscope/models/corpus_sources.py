"""From what a person names to a task: the files of a corpus, tokenised once and used again, or data that a recipe makes itself."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from rheoscope.files import write_file
from rheoscope.models.digits import Digits
from rheoscope.models.recipes import Recipe
from rheoscope.models.sentence_pairs import PairCorpus, prepare_pairs
from rheoscope.models.task import Task, task_of
from rheoscope.models.text_files import END_OF_TEXT
from rheoscope.models.token_corpus import MASKED, Corpus, Progress, prepare
from rheoscope.models.token_files import MANIFEST, REQUEST, filling
from rheoscope.models.train import Place
from rheoscope.models.two_moons import TwoMoons
from rheoscope.shapes import RheoscopeError

MADE: dict[str, Callable[[], Task]] = {"two_moons": TwoMoons, "digits": Digits}
"""Recipes that need no files, by name, and what they learn."""


def check_data(name: str, data: Sequence[Path]) -> None:
    """Refuse files for a recipe that makes its own data, and none for one that does not.

    >>> check_data("digits", [])
    >>> check_data("tiny", [])
    Traceback (most recent call last):
    rheoscope.shapes.RheoscopeError: recipe tiny learns from files, got none; type --data FILE…
    """
    if data and name in MADE:
        raise RheoscopeError(f"recipe {name} makes its own data, got {data[0]}; leave --data and --held-out out")
    if not data and name not in MADE:
        raise RheoscopeError(f"recipe {name} learns from files, got none; type --data FILE…")


def task_for(
    name: str,
    recipe: Recipe,
    data: Sequence[Path],
    held_out: Sequence[Path],
    out: Path,
    place: Place,
    progress: Progress | None = None,
) -> tuple[Task, Path | None]:
    """What the recipe of a name learns, and the tokenizer of its texts where it has some."""
    check_data(name, [*data, *held_out])
    if name in MADE:
        return MADE[name](), None
    corpus = corpus_for(recipe, data, held_out, out, place, progress)
    return task_of(corpus, recipe), corpus.tokenizer


def corpus_for(
    recipe: Recipe,
    data: Sequence[Path],
    held_out: Sequence[Path],
    out: Path,
    place: Place,
    progress: Progress | None = None,
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
    >>> recipe, here = tiny().but(vocabulary="characters"), Place(torch.device("cpu"))
    >>> corpus_for(recipe, [folder / "a.txt"], [], folder / "data", here).vocabulary
    9
    """
    translates = recipe.config.form == "encoder-decoder"
    if len(data) == 1 and data[0].is_dir():
        if held_out:
            raise RheoscopeError(f"{data[0]} is prepared and has its held-out part; leave --held-out out")
        out = data[0]
    elif place.first:
        _prepare(recipe, data, held_out, out, translates, progress)
    place.wait()
    return PairCorpus.open(out) if translates else Corpus.open(out)


def _prepare(
    recipe: Recipe,
    data: Sequence[Path],
    held_out: Sequence[Path],
    out: Path,
    translates: bool,
    progress: Progress | None,
) -> None:
    if translates and (len(data) != 2 or len(held_out) not in (0, 2)):
        raise RheoscopeError(
            f"a translator learns from pairs, got {len(data)} files to train on and {len(held_out)} held out; "
            "type --data SOURCE TARGET [--held-out SOURCE TARGET]"
        )
    request = _request(recipe, data, held_out)
    if (out / MANIFEST).is_file():
        _check_same(out, request)
        return
    with filling(out):
        write_file(out / REQUEST, lambda file: file.write_text(json.dumps(request, indent=1) + "\n"))
        _tokenise(recipe, data, held_out, out, translates, progress)


def _tokenise(
    recipe: Recipe,
    data: Sequence[Path],
    held_out: Sequence[Path],
    out: Path,
    translates: bool,
    progress: Progress | None,
) -> None:
    if not translates:
        specials = MASKED if recipe.config.form == "encoder" else (END_OF_TEXT,)
        aside = held_out or recipe.held_out
        prepare(data, out, recipe.vocabulary, held_out=aside, progress=progress, specials=specials)
        return
    if not isinstance(recipe.vocabulary, int):
        raise RheoscopeError(
            f"a translator's vocabulary is a number, got {recipe.vocabulary!r}; type --set vocabulary=8000"
        )
    pair = (held_out[0], held_out[1]) if held_out else None
    prepare_pairs(data[:1], data[1:], out, recipe.vocabulary, pair, progress)


def _request(recipe: Recipe, data: Sequence[Path], held_out: Sequence[Path]) -> dict[str, object]:
    """What a corpus depends on: names and sizes of the files, and how they are cut into tokens."""
    sizes = [[(file.name, file.stat().st_size if file.is_file() else 0) for file in part] for part in (data, held_out)]
    return json.loads(
        json.dumps({"data": sizes[0], "held out": sizes[1] or recipe.held_out, "vocabulary": recipe.vocabulary})
    )


def _check_same(out: Path, request: dict[str, object]) -> None:
    file = out / REQUEST
    held = json.loads(file.read_text()) if file.is_file() else {}
    for name, value in request.items():
        if held.get(name) != value:
            raise RheoscopeError(
                f"{out} was made with {name} {_short(held.get(name))}, now {_short(value)}; type the same, another --out, "
                f"or remove {out}"
            )


def _short(told: object) -> str:
    return ", ".join(f"{name} ({size:,} bytes)" for name, size in told) if isinstance(told, list) else str(told)
