"""Any answer told from its fields alone: a table an axis, nulls beside what they are of, the rest by name."""

import numpy as np
import pytest
import xarray as xr

from rheoscope.catalogue import ANALYSIS_MODULES
from rheoscope.picture.blocks import Lines, Table
from rheoscope.report.field_blocks import MAX_COLUMNS, MAX_ROWS, blocks
from rheoscope.space.results import Results
from tests.pictures.cases import found, model


def told(dataset: xr.Dataset) -> list[Table | Lines]:
    return blocks(Results(model().view, model().token_strings, None, {"toy": dataset}), "toy")  # type: ignore[return-value]


def test_a_table_an_axis_and_a_line_for_what_is_larger() -> None:
    heads = np.array([[1.0, 2.0, 9.0], [4.0, 5.0, 6.0]])
    dataset = xr.Dataset(
        {
            "by_head": (("layer", "head"), heads, {"definition": "of a head", "null": "by_head_null"}),
            "by_head_null": (("layer", "head"), heads / 10),
            "kind": ("layer", ["a", "b"]),
            "length": ("token", [0.5, np.nan, 1.5]),
            "map": (("layer", "head", "token"), np.arange(18.0).reshape(2, 3, 3), {"unit": "nats"}),
            "loss": ((), 2.25, {"unit": "nats"}),
            "empty": (("layer", "token"), np.full((2, 3), np.nan)),
        },
        {"layer": [0, 1], "head": [0, 1, 2], "token": [4, 5, 6]},
    )
    by_layer, by_token, others = told(dataset)
    assert isinstance(by_layer, Table)
    assert by_layer.heading == "toy by layer, median over heads"
    assert [cell.text for cell in by_layer.header] == ["layer", "by_head", "kind"]
    assert by_layer.header[1].definition == "of a head"
    assert [[cell.text for cell in row] for row in by_layer.rows] == [["0", "2", "a"], ["1", "5", "b"]]
    assert [row[1].small_text for row in by_layer.rows] == [".20", ".50"]
    assert isinstance(by_token, Table)
    assert [[cell.text for cell in row] for row in by_token.rows] == [["4", ".50"], ["5", "none"], ["6", "1.50"]]
    assert isinstance(others, Lines)
    assert others.lines == [
        "map (layer 2, head 3, token 3): from .00 to 17, median 8.5 nats",
        "loss: 2.2 nats",
        "empty (layer 2, token 3)",
    ]


def test_two_axes_are_a_table_with_nulls_beside() -> None:
    """Medians over heads; what chance gives is small; no spread of a null, and no interval that there is none of."""
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
    (table,) = told(dataset)
    assert isinstance(table, Table)
    assert table.heading == "toy: stability by layer and prefix, median over heads"
    assert [cell.text for cell in table.header] == ["layer", "prefix Once", "prefix In"]
    assert [cell.text for cell in table.rows[1]] == ["1", "2.5", "8.5"]
    assert [cell.small_text for cell in table.rows[1]] == ["", ".62", "2.1"]


def test_long_and_wide_answers_are_cut_aloud() -> None:
    many = xr.Dataset({f"x{at}": ("token", np.arange(MAX_ROWS + 5.0)) for at in range(MAX_COLUMNS + 1)})
    first, second = told(many)
    assert isinstance(first, Table)
    assert isinstance(second, Table)
    assert len(first.header) == MAX_COLUMNS + 1
    assert len(second.header) == 2
    assert len(first.rows) == MAX_ROWS
    assert first.note == f"the first {MAX_ROWS} of {MAX_ROWS + 5} rows; the files have all"


@pytest.mark.parametrize("name", ANALYSIS_MODULES)
def test_every_analysis_can_be_told(name: str) -> None:
    dataset = found(name)
    said = blocks(Results(model().view, model().token_strings, None, {name: dataset}), name)
    named = {cell.text for one in said if isinstance(one, Table) for cell in one.header}
    lines = {line.split(":")[0].split(" (")[0] for one in said if isinstance(one, Lines) for line in one.lines}
    crossed = {one.heading.split(": ")[1].split(" by ")[0] for one in said if ": " in one.heading}
    beside = {dataset[field].attrs.get(part) for field in dataset.data_vars for part in ("null", "null_sd")}
    ends = {str(field) for field in dataset.data_vars if str(field).endswith(("_low", "_high"))}
    empty = {field for field in ends if not np.isfinite(dataset[field].values).any()}
    assert set(map(str, dataset.data_vars)) - beside - empty <= named | lines | crossed
    assert all(len(row) == len(one.header) for one in said if isinstance(one, Table) for row in one.rows)
