"""Reading word lists from tab-separated files with a heading."""

from pathlib import Path

from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError


def read_tsv_rows(path: str | Path, columns: tuple[str, ...], optional: tuple[str, ...] = ()) -> list[dict[str, str]]:
    """The rows of a file whose first line names its columns. The `optional` columns may be missing.

    >>> read_tsv_rows(Path(__file__).parent / "senses" / "senses.tsv", ("word", "sense", "sentence"))[0]["word"]
    'bank'
    """
    expected = " TAB ".join(columns)
    try:
        heading, *lines = [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise RheoscopeError(
            Message(
                "{path} cannot be read ({reason}); a word list is a text file whose first line is {expected}",
                path=str(path),
                reason=reason,
                expected=expected,
            )
        ) from error
    names = heading.split("\t")
    if not set(columns) <= set(names) <= {*columns, *optional}:
        raise RheoscopeError(
            Message(
                "the first line of {path} must be {expected}, got {heading!r}",
                path=str(path),
                expected=expected,
                heading=heading,
            )
        )
    rows = [line.split("\t") for line in lines]
    bad_row = next((index for index, row in enumerate(rows) if len(row) != len(names)), None)
    if bad_row is not None:
        raise RheoscopeError(
            Message(
                "row {row} of {path} must have {expected} columns separated by tabs, got {received}",
                row=bad_row + 1,
                path=str(path),
                expected=len(names),
                received=len(rows[bad_row]),
            )
        )
    return [dict(zip(names, row, strict=True)) for row in rows]
