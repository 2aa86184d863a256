"""The result of an analysis as one CSV file, with definitions and provenance."""

from typing import TYPE_CHECKING

from rheoscope.report.tables import csv_text, table

if TYPE_CHECKING:
    import xarray


def dataset_to_csv(dataset: "xarray.Dataset") -> str:
    """All tables of a result in one CSV file. Lines that start with # hold the provenance and the definitions."""
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
