"""Files of pairs of texts: JSON lines, CSV or TSV."""

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rheoscope.covers.patch.metrics import ANSWER_SEPARATOR
from rheoscope.covers.patch.pairs import Pair
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

EXAMPLE_LINE = '{"clean": "The men who live here", "corrupt": "The man who live here", "answers": " are| is"}'
EXAMPLE = Advice(EXAMPLE_LINE, EXAMPLE_LINE)
DELIMITERS = {".csv": ",", ".tsv": "\t"}
FIELDS = ("clean", "corrupt", "answers", "spans")


def read_pairs(path: str | Path) -> list[Pair]:
    """The pairs of a file, with their lines.

    A `.jsonl` file has an object per line: {"clean": "…", "corrupt": "…", "answers": " are| is", "spans": {"subject": "men"}}.
    `answers` and `spans` are optional; answers may also be a list of two. In a `.csv` or `.tsv` file with a header, every column
    other than clean, corrupt and answers is a span.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "pairs.csv"
    >>> _ = file.write_text("clean,corrupt,answers,subject\\nThe men who,The man who, are| is,men\\n")
    >>> pair = read_pairs(file)[0]
    >>> pair.clean, pair.answers, dict(pair.spans), pair.name
    ('The men who', ' are| is', {'subject': 'men'}, 'line 2')
    """
    path = Path(path)
    if path.suffix not in (".jsonl", *DELIMITERS):
        raise RheoscopeError(
            Message("{path}: expected a .jsonl, .csv or .tsv file of pairs", path=str(path)),
            Advice("pairs.jsonl", "--pairs pairs.jsonl"),
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise RheoscopeError(Message("{path} cannot be read: {reason}", path=str(path), reason=reason)) from None
    rows = _json_rows(text) if path.suffix == ".jsonl" else _table_rows(text, DELIMITERS[path.suffix])
    pairs = [_parse_pair(row, line) for line, row in rows]
    if not pairs:
        raise RheoscopeError(Message("{path} contains no pairs", path=str(path)), EXAMPLE)
    return pairs


def _json_rows(text: str) -> Iterator[tuple[int, Any]]:
    for line, content in enumerate(text.splitlines(), 1):
        if content.strip():
            try:
                yield line, json.loads(content)
            except ValueError:
                raise _not_a_pair(line, content) from None


def _table_rows(text: str, delimiter: str) -> Iterator[tuple[int, Any]]:
    reader = csv.DictReader(text.splitlines(), delimiter=delimiter)
    for row in reader:
        spans = {name: value for name, value in row.items() if name not in FIELDS}
        yield reader.line_num, {name: row[name] for name in FIELDS[:3] if row.get(name)} | {"spans": spans}


def _parse_pair(row: Any, line: int) -> Pair:
    """A row as a pair; raises if it is not one."""
    if not isinstance(row, Mapping) or set(row) - set(FIELDS):
        raise _not_a_pair(line, row)
    clean, corrupt = row.get("clean"), row.get("corrupt")
    answers, spans = row.get("answers", ""), row.get("spans", {})
    if isinstance(answers, list) and all(isinstance(answer, str) for answer in answers):
        answers = ANSWER_SEPARATOR.join(answers)
    has_spans = isinstance(spans, Mapping) and all(isinstance(piece, str) for piece in spans.values())
    if not isinstance(clean, str) or not isinstance(corrupt, str) or not isinstance(answers, str) or not has_spans:
        raise _not_a_pair(line, row)
    if not clean or not corrupt:
        raise _not_a_pair(line, row)
    return Pair(clean, corrupt, answers, spans, Message("line {line}", line=line))


def _not_a_pair(line: int, content: Any) -> RheoscopeError:
    return RheoscopeError(
        Message(
            "line {line}: expected clean, corrupt and, if you like, answers and spans; got {content}",
            line=line,
            content=str(content)[:60],
        ),
        EXAMPLE,
    )
