"""An answer as a file to take away: every number of it, with what it means and where it comes from."""

from typing import TYPE_CHECKING

from rheoscope.report.tables import csv_text, table

if TYPE_CHECKING:
    import xarray


def dataset_to_csv(dataset: "xarray.Dataset") -> str:
    """All tables of an answer in one CSV: its provenance and every definition in lines that begin with #, then table after table."""
    attribute_lines = [f"# {name}: {_collapse_whitespace(value)}" for name, value in dataset.attrs.items()]
    sections = ["\n".join(attribute_lines)]
    for name, frame in table(dataset).items():
        definition_lines = [
            f"# {field}: {_collapse_whitespace(definition)}"
            for field, definition in frame.attrs.get("definitions", {}).items()
        ]
        sections.append("\n".join([f"# table {name}", *definition_lines, csv_text(frame)]))
    return "\n".join(sections)


def _collapse_whitespace(value: object) -> str:
    return " ".join(str(value).split())
