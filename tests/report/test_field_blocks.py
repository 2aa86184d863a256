"""Results as tables of their fields: one table per axis, with nulls, and lines for the rest."""

import numpy as np
import pytest
import xarray as xr

from rheoscope.catalogue import ANALYSIS_MODULES
from rheoscope.picture.blocks import Lines, Table
from rheoscope.report.field_blocks import MAX_COLUMNS, MAX_ROWS, blocks
from rheoscope.space.results import Results
from tests.pictures.cases import example_result, model


def toy_blocks(dataset: xr.Dataset) -> list[Table | Lines]:
    return blocks(Results(model().view, model().token_strings, None, {"toy": dataset}), "toy")  # type: ignore[return-value]


def test_every_axis_has_a_table_and_larger_fields_a_line() -> None:
    heads = np.array([[1.0, 2.0, 9.0], [4.0, 5.0, 6.0]])
    dataset = xr.Dataset(
        {
            "by_head": (("layer", "head"), heads, {"definition": "of a head", "null": "by_head_null"}),
            "by_head_null": (("layer", "head"), heads / 10),
            "kind": ("layer", ["a", "b"]),
            "length": ("token", [0.5, np.nan, 1.5]),
            "partner": ("token", [1, 0, 2]),
            "map": (("layer", "head", "token"), np.arange(18.0).reshape(2, 3, 3), {"unit": "nats"}),
            "loss": ((), 2.25, {"unit": "nats"}),
            "empty": (("layer", "token"), np.full((2, 3), np.nan)),
        },
        {"layer": [0, 1], "head": [0, 1, 2], "token": [4, 5, 6]},
    )
    by_layer, by_token, others = toy_blocks(dataset)
    assert isinstance(by_layer, Table)
    assert by_layer.heading == "toy by layer, median over heads"
    assert [cell.text for cell in by_layer.header] == ["layer", "by_head", "kind"]
    assert by_layer.header[1].definition == "of a head"
    assert [[cell.text for cell in row] for row in by_layer.rows] == [["0", "2", "a"], ["1", "5", "b"]]
    assert [row[1].small_text for row in by_layer.rows] == [".20", ".50"]
    assert isinstance(by_token, Table)
    assert [[cell.text for cell in row] for row in by_token.rows] == [
        ["4", ".50", "1"],
        ["5", "none", "0"],
        ["6", "1.50", "2"],
    ]
    assert isinstance(others, Lines)
    assert others.lines == [
        "map (layer 2, head 3, token 3): from .00 to 17, median 8.5 nats",
        "loss: 2.2 nats",
        "empty (layer 2, token 3)",
    ]


def test_a_field_with_two_axes_has_a_table_with_nulls() -> None:
    """The table has medians over heads and small nulls, but no standard deviations and no empty intervals."""
    values = np.arange(12.0).reshape(2, 3, 2)
    dataset = xr.Dataset(
        {
            "stability": (("prefix", "layer", "head"), values, {"null": "stability_null", "null_sd": "stability_sd"}),
            "stability_null": (("prefix", "layer", "head"), values / 4),
            "stability_sd": (("prefix", "layer", "head"), values / 9),
            "stability_low": (("prefix", "layer"), np.full((2, 3), np.nan)),
        },
        {"prefix": ["Once", "In"], "layer": [0, 1, 2], "head": [0, 1]},
    )
    (table,) = toy_blocks(dataset)
    assert isinstance(table, Table)
    assert table.heading == "toy: stability by layer and prefix, median over heads"
    assert [cell.text for cell in table.header] == ["layer", "prefix Once", "prefix In"]
    assert [cell.text for cell in table.rows[1]] == ["1", "2.5", "8.5"]
    assert [cell.small_text for cell in table.rows[1]] == ["", ".62", "2.1"]


def test_long_tables_are_truncated_with_a_note() -> None:
    dataset = xr.Dataset({f"x{index}": ("token", np.arange(MAX_ROWS + 5.0)) for index in range(MAX_COLUMNS + 1)})
    first, second = toy_blocks(dataset)
    assert isinstance(first, Table)
    assert isinstance(second, Table)
    assert len(first.header) == MAX_COLUMNS + 1
    assert len(second.header) == 2
    assert len(first.rows) == MAX_ROWS
    assert first.note == f"the first {MAX_ROWS} of {MAX_ROWS + 5} rows; the files have all"


@pytest.mark.parametrize("name", ANALYSIS_MODULES)
def test_every_field_of_every_analysis_appears(name: str) -> None:
    dataset = example_result(name)
    shown_blocks = blocks(Results(model().view, model().token_strings, None, {name: dataset}), name)
    column_names = {cell.text for block in shown_blocks if isinstance(block, Table) for cell in block.header}
    lines = {
        line.split(":")[0].split(" (")[0] for block in shown_blocks if isinstance(block, Lines) for line in block.lines
    }
    crossed = {block.heading.split(": ")[1].split(" by ")[0] for block in shown_blocks if ": " in block.heading}
    inline_fields = {dataset[field].attrs.get(part) for field in dataset.data_vars for part in ("null", "null_sd")}
    ends = {str(field) for field in dataset.data_vars if str(field).endswith(("_low", "_high"))}
    empty = {field for field in ends if not np.isfinite(dataset[field].values).any()}
    assert set(map(str, dataset.data_vars)) - inline_fields - empty <= column_names | lines | crossed
    assert all(
        len(row) == len(block.header) for block in shown_blocks if isinstance(block, Table) for row in block.rows
    )
