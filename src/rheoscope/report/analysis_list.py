"""The catalogue as text: the list in the README, and the page of the documentation with every field."""

import sys
from pathlib import Path

from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from rheoscope.files import write_file
from rheoscope.space.analysis import Analysis

LIST_MARKERS = "<!-- analyses -->", "<!-- /analyses -->"
"""The list in the README stands between these markers."""
NEEDS_TEXT = {"view": "weights alone", "trace": "one text", "model": "runs the model again"}


def catalogue_table() -> str:
    """Every analysis with its question, as rows of a Markdown table.

    >>> catalogue_table().splitlines()[2].startswith("| `frames` |")
    True
    """
    rows = [
        f"| `{spec.name}` | {spec.question} | {NEEDS_TEXT[spec.needs]} |"
        for spec in map(analysis_by_name, ANALYSIS_MODULES)
    ]
    return "\n".join(["| analysis | what it asks | needs |", "|---|---|---|", *rows])


def catalogue_page() -> str:
    """Every analysis with its call, its command and its fields, in Markdown."""
    return "\n\n".join(
        [catalogue_table(), *(_analysis_section(spec) for spec in map(analysis_by_name, ANALYSIS_MODULES))]
    )


def _analysis_section(spec: Analysis) -> str:
    call = f"rs.{spec.name}({', '.join('model.view' if name == 'view' else name for name in spec.subjects)})"
    text_argument = "" if spec.needs == "view" else ' "The keys to the cabinet are"'
    settings = ", ".join(
        f"`{name}={setting.default!r}`"
        for name, setting in spec.settings.items()
        if _is_simple_default(setting.default)
    )
    rows = [
        f"| `{name}` | {', '.join(field.dims) or 'one number'} | "
        f"{_escape_cell(field.definition)}{f' ({field.unit})' if field.unit else ''} |"
        for name, field in spec.fields.items()
    ]
    return "\n".join(
        [
            f"## {spec.name}",
            "",
            f"{spec.question} Needs {NEEDS_TEXT[spec.needs]}: `{call}`, or `rheoscope analyse {spec.name}{text_argument}`.",
            "",
            *([f"Settings: {settings}.", ""] if settings else []),
            "| field | axes | definition |",
            "|---|---|---|",
            *rows,
        ]
    )


def _is_simple_default(default: object) -> bool:
    return isinstance(default, int | float | str | tuple)


def _escape_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("$", "\\$")


def insert_catalogue_table(text: str) -> str:
    """A page with the list of the catalogue between the markers.

    >>> insert_catalogue_table("a <!-- analyses --> old <!-- /analyses --> b").count("| `readout` |")
    1
    """
    (before, remainder), (start_marker, end_marker) = text.split(LIST_MARKERS[0], 1), LIST_MARKERS
    return f"{before}{start_marker}\n{catalogue_table()}\n{end_marker}{remainder.split(end_marker, 1)[1]}"


if __name__ == "__main__":
    page_path = Path(sys.argv[1])
    print(
        write_file(
            page_path,
            lambda temporary: temporary.write_text(
                insert_catalogue_table(page_path.read_text(encoding="utf-8")), encoding="utf-8"
            ),
        )
    )
