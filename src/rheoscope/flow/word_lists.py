"""Word lists as people write them: a file of columns between tabs, a heading first."""

from pathlib import Path

from rheoscope.shapes import RheoscopeError


def read_tsv_rows(path: str | Path, columns: tuple[str, ...], optional: tuple[str, ...] = ()) -> list[dict[str, str]]:
    """The rows of a file whose first line names its columns; `further` ones may be left out.

    >>> read_tsv_rows(Path(__file__).parent / "senses" / "senses.tsv", ("word", "sense", "sentence"))[0]["word"]
    'bank'
    """
    expected = f"a file whose first line is {' TAB '.join(columns)}"
    try:
        heading, *lines = [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise RheoscopeError(f"{path} cannot be read as a word list ({reason}); type the path of {expected}") from error
    names = heading.split("\t")
    if not set(columns) <= set(names) <= {*columns, *optional}:
        raise RheoscopeError(f"the first line of {path} is {heading!r}; type the path of {expected}")
    rows = [line.split("\t") for line in lines]
    bad_row = next((index for index, row in enumerate(rows) if len(row) != len(names)), None)
    if bad_row is not None:
        raise RheoscopeError(
            f"row {bad_row + 1} of {path} has {len(rows[bad_row])} columns, its heading {len(names)}; put a tab between columns"
        )
    return [dict(zip(names, row, strict=True)) for row in rows]
