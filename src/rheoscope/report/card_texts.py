"""The texts of a card: the passages of the package, a file or a directory of texts, or texts given in Python."""

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.report.input_text import refuse_unreadable
from rheoscope.report.text_pairs import TextPair, is_pair, split_line
from rheoscope.running.encoder_decoder import EncoderDecoder
from rheoscope.running.lost_text import count_characters, lost_characters
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Text

if TYPE_CHECKING:
    import xarray

PASSAGES = Path(__file__).parent / "passages.jsonl"
MIN_TEXTS = 4
"""The smallest number of texts. Fewer have no interval."""
MAX_LOST_SHARE = 0.02
"""The largest share of characters of all texts that a tokenizer may drop."""
OWN_TEXTS = Advice("rs.card(model, ['…', '…', '…', '…'])", "--texts FILE")


@cache
def passages() -> tuple[str, ...]:
    """The texts that come with the package, written for it: prose, dialogue, exposition, lists, code, questions and verse.

    >>> len(passages())
    96
    """
    return tuple(json.loads(line)["text"] for line in PASSAGES.read_text(encoding="utf-8").splitlines())


def texts_digest(texts: "Sequence[Text | TextPair]") -> str:
    """A name of these texts, which a card keeps. Texts given as token ids are not part of it.

    >>> texts_digest(["a", "b"]) == texts_digest(["a", "c"])
    False
    """
    names = [text.digest_text if isinstance(text, TextPair) else text for text in texts]
    return hashlib.sha256(json.dumps([name for name in names if isinstance(name, str)]).encode()).hexdigest()[:16]


def texts_of_card(card: "xarray.Dataset") -> tuple[str, ...] | None:
    """The passages of the package if the card is about them, else None: a card does not contain its texts."""
    return passages() if card.attrs.get("texts") == texts_digest(passages()) else None


def read_texts(path: Path) -> list[Any]:
    """The texts of a file, one per line (or per JSON object with a "text", in a .jsonl file), or of the files of a directory.

    A JSON object with a "source" and a "target" is a pair, and one with "ids" a text as token ids. Lines of a pair, with a tab
    between both, are split by `for_model`.
    """
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
        return [_read(file) for file in files]
    lines = [line for line in _read(path).splitlines() if line.strip()]
    return [_json_text(line, path) if path.suffix == ".jsonl" else line for line in lines]


def _read(file: Path) -> str:
    with refuse_unreadable(file, OWN_TEXTS):
        return file.read_text(encoding="utf-8")


def _json_text(line: str, path: Path) -> str | list[int] | tuple[str, str]:
    try:
        fields = json.loads(line)
        if "ids" in fields:
            return list(map(index, fields["ids"]))
        return (str(fields["source"]), str(fields["target"])) if "target" in fields else str(fields["text"])
    except (ValueError, KeyError, TypeError):
        raise RheoscopeError(
            Message(
                '{path}: expected {{"text": "…"}}, {{"source": "…", "target": "…"}} or {{"ids": [1, 2]}} in every line, got {line!r}',
                path=str(path),
                line=line[:60],
            ),
            OWN_TEXTS,
        ) from None


def for_model(model: RunnableModel, texts: Sequence[Any]) -> list[Any]:
    """The texts of a file as this model reads them: an encoder-decoder splits lines at their tab into source and target."""
    if not isinstance(model, EncoderDecoder):
        return list(texts)
    return [split_line(text) if isinstance(text, str) else text for text in texts]


def check_number(texts: Sequence[Any]) -> None:
    """Refuse fewer than four texts."""
    if len(texts) < MIN_TEXTS:
        raise RheoscopeError(
            Message("a card needs at least {low} texts, got {n}", low=MIN_TEXTS, n=len(texts)), OWN_TEXTS
        )


def check_texts(model: RunnableModel, texts: Sequence[Any]) -> None:
    """Refuse fewer than four texts, pairs for a model of one text, and a vocabulary that loses part of the texts."""
    check_number(texts)
    n_pairs = sum(map(is_pair, texts))
    if n_pairs:
        raise RheoscopeError(
            Message(
                "{model} reads one text, but {n} of {total} texts are pairs of a source and a target",
                model=model.view.name,
                n=n_pairs,
                total=len(texts),
            ),
            OWN_TEXTS,
        )
    n_lost = n_total = 0
    for text in texts:
        if isinstance(text, str) and model.tokenizer is not None and (spans := model.token_spans(text)) is not None:
            n_lost, n_total = n_lost + len(lost_characters(text, spans)), n_total + count_characters(text)
    if n_lost > MAX_LOST_SHARE * n_total:
        raise RheoscopeError(
            Message(
                "the tokenizer loses {lost:,} of {total:,} characters of the texts; use texts of its own kind",
                lost=n_lost,
                total=n_total,
            ),
            OWN_TEXTS,
        )
