"""The catalogue as Markdown: a table of all analyses, and the page of the documentation with every field."""

from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from rheoscope.space.analysis import Analysis

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
