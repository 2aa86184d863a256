"""Word lists as people write them: a file of columns between tabs, a heading first."""

from pathlib import Path

from rheoscope.shapes import RheoscopeError


def rows_of(path: str | Path, columns: tuple[str, ...], further: tuple[str, ...] = ()) -> list[dict[str, str]]:
    """The rows of a file whose first line names its columns; `further` ones may be left out.

    >>> rows_of(Path(__file__).parent / "senses" / "senses.tsv", ("word", "sense", "sentence"))[0]["word"]
    'bank'
    """
    wanted = f"a file whose first line is {' TAB '.join(columns)}"
    try:
        heading, *lines = [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeError, ValueError) as error:
        said = str(error).splitlines()[0]
        raise RheoscopeError(f"{path} cannot be read as a word list ({said}); type the path of {wanted}") from error
    names = heading.split("\t")
    if not set(columns) <= set(names) <= {*columns, *further}:
        raise RheoscopeError(f"the first line of {path} is {heading!r}; type the path of {wanted}")
    rows = [line.split("\t") for line in lines]
    short = next((at for at, row in enumerate(rows) if len(row) != len(names)), None)
    if short is not None:
        raise RheoscopeError(
            f"row {short + 1} of {path} has {len(rows[short])} columns, its heading {len(names)}; put a tab between columns"
        )
    return [dict(zip(names, row, strict=True)) for row in rows]
