"""The table of layers: one row per layer, with the columns that analyses declare and the null of each number."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rheoscope.catalogue import ANALYSIS_MODULES, words_by_name
from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number
from rheoscope.picture.blocks import Block, Cell, Table
from rheoscope.space.results import Results
from rheoscope.space.words import LayerColumn

if TYPE_CHECKING:
    import xarray

COLUMNS = tuple(column for name in ANALYSIS_MODULES for column in words_by_name(name).layer_columns)
"""The columns of all analyses, in the order of the catalogue. A column without a result is left out of the table."""
NEEDS = tuple(dict.fromkeys(column.analysis for column in COLUMNS))
NULL_CAPTION = Message("small: mean of the null")


def available_columns(datasets: "Mapping[str, xarray.Dataset]") -> list[LayerColumn]:
    """The columns whose analysis has a result."""
    return [column for column in COLUMNS if column.analysis in datasets]


def shared_columns(first_results: Results, second_results: Results) -> list[LayerColumn]:
    """The columns whose analysis has a result for both texts."""
    return [column for column in available_columns(first_results.datasets) if second_results.has(column.analysis)]


def blocks(results: Results) -> list[Block]:
    """The table, with the columns that have a result."""
    columns = available_columns(results.datasets)
    header = [
        Cell(Message("layer")),
        *(Cell(column.title, column.definition, Message("null") if column.null else "") for column in columns),
    ]
    rows = [
        [Cell(f"L{layer}"), *(_cell(column, results.datasets[column.analysis], layer) for column in columns)]
        for layer in range(results.view.layers)
    ]
    note = "" if results.has_nulls else Message("null distributions were not drawn (--fast)")
    heading = Message("How each layer moves the cloud")
    return [Table(heading, header, rows, small_caption=NULL_CAPTION, note=note)] if columns else []


def _cell(column: LayerColumn, dataset: "xarray.Dataset", layer: int) -> Cell:
    null = format_number(column.null(dataset, layer)) if column.null else ""
    return Cell(format_number(column.value(dataset, layer)), small_text="" if null == "none" else null)


def comparison_blocks(first_results: Results, second_results: Results) -> list[Block]:
    """Three rows per layer: the first text, the second text, and the second minus the first."""
    columns = shared_columns(first_results, second_results)
    rows: list[list[Cell]] = []
    for layer in range(first_results.view.layers):
        values = [
            [column.value(results.datasets[column.analysis], layer) for column in columns]
            for results in (first_results, second_results)
        ]
        differences = [second - first for first, second in zip(*values, strict=True)]
        for row_name, row in (("1", values[0]), ("2", values[1]), ("2−1", differences)):
            rows.append([Cell(f"L{layer} {row_name}"), *(Cell(format_number(value)) for value in row)])
    header = [Cell(Message("layer, text")), *(Cell(column.title, column.definition) for column in columns)]
    group_ends = frozenset(range(2, len(rows), 3))
    heading = Message("How each layer moves the cloud of each text, and the difference")
    return [Table(heading, header, rows, group_ends=group_ends)] if columns else []
