"""The catalogue as text: the list in the README, and the page of the documentation with every field."""

import sys
from pathlib import Path

from rheoscope.catalogue import TABLE, analysis
from rheoscope.files import write_file
from rheoscope.space.analysis import Analysis

MARKS = "<!-- analyses -->", "<!-- /analyses -->"
"""Between them stands the list in the README."""
NEEDS = {"view": "weights alone", "trace": "one text", "model": "runs the model again"}


def as_list() -> str:
    """Every analysis with its question, as rows of a Markdown table.

    >>> as_list().splitlines()[2].startswith("| `frames` |")
    True
    """
    rows = [f"| `{one.name}` | {one.question} | {NEEDS[one.needs]} |" for one in map(analysis, TABLE)]
    return "\n".join(["| analysis | what it asks | needs |", "|---|---|---|", *rows])


def as_page() -> str:
    """Every analysis with its call, its command and its fields, in Markdown."""
    return "\n\n".join([as_list(), *(_section(one) for one in map(analysis, TABLE))])


def _section(one: Analysis) -> str:
    call = f"rs.{one.name}({', '.join('model.view' if name == 'view' else name for name in one.subjects)})"
    text = "" if one.needs == "view" else ' "The keys to the cabinet are"'
    settings = ", ".join(
        f"`{name}={setting.default!r}`" for name, setting in one.settings.items() if _plain(setting.default)
    )
    rows = [
        f"| `{name}` | {', '.join(field.dims) or 'one number'} | {_cell(field.definition)}{f' ({field.unit})' if field.unit else ''} |"
        for name, field in one.fields.items()
    ]
    return "\n".join([
        f"## {one.name}",
        "",
        f"{one.question} Needs {NEEDS[one.needs]}: `{call}`, or `rheoscope analyse {one.name}{text}`.",
        "",
        *([f"Settings: {settings}.", ""] if settings else []),
        "| field | axes | definition |",
        "|---|---|---|",
        *rows,
    ])  # fmt: skip


def _plain(default: object) -> bool:
    return isinstance(default, int | float | str | tuple)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("$", "\\$")


def with_list(text: str) -> str:
    """A page whose list between the marks is that of the catalogue.

    >>> with_list("a <!-- analyses --> old <!-- /analyses --> b").count("| `readout` |")
    1
    """
    (before, rest), (begin, end) = text.split(MARKS[0], 1), MARKS
    return f"{before}{begin}\n{as_list()}\n{end}{rest.split(end, 1)[1]}"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    print(
        write_file(
            page, lambda temporary: temporary.write_text(with_list(page.read_text(encoding="utf-8")), encoding="utf-8")
        )
    )
