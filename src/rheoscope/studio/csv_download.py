"""An answer as a file to take away: every number of it, with what it means and where it comes from."""

from typing import TYPE_CHECKING

from rheoscope.report.tables import csv_text, table

if TYPE_CHECKING:
    import xarray


def csv_of(dataset: "xarray.Dataset") -> str:
    """All tables of an answer in one CSV: its provenance and every definition in lines that begin with #, then table after table."""
    facts = [f"# {name}: {_one_line(value)}" for name, value in dataset.attrs.items()]
    parts = ["\n".join(facts)]
    for name, frame in table(dataset).items():
        meant = [f"# {field}: {_one_line(text)}" for field, text in frame.attrs.get("definitions", {}).items()]
        parts.append("\n".join([f"# table {name}", *meant, csv_text(frame)]))
    return "\n".join(parts)


def _one_line(value: object) -> str:
    return " ".join(str(value).split())
