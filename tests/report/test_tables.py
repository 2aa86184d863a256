"""Tidy tables: every number appears once, and unrelated dimensions are not multiplied."""

import math

import numpy as np
import pytest
import xarray as xr

import rheoscope as rs
from tests.report.cases import small

TEXT = "The keys to the cabinet are on the table"


def toy() -> xr.Dataset:
    """Fields of two, one and no dimensions, one with transposed axes, and two kinds of labels."""
    grid = np.arange(6.0).reshape(2, 3)
    return xr.Dataset(
        {
            "speed": (("step", "token"), grid, {"definition": "how fast", "unit": "radians", "null": "turned"}),
            "turned": (("token", "step"), 10 * grid.T),
            "length": ("token", [1.0, np.nan, 3.0], {"basis": "depends on the basis of E"}),
            "loose": ("draw", [7, 8]),
            "logit": ((), 0.5, {"definition": "the logit"}),
        },
        {"step": ["L0", "L1"], "token": [4, 5, 6], "token_text": ("token", ["a,", 'b"', "c\n"]), "seed": 3},
        {"analysis": "toy", "model": "a model"},
    )


def test_one_table_for_each_set_of_dimensions() -> None:
    tables = rs.table(toy())
    assert {name: frame.shape for name, frame in tables.items()} == {
        "step token": (6, 3),
        "token": (3, 2),
        "draw": (2, 1),
        "scalar": (1, 1),
    }
    frame = tables["step token"]
    assert frame.index.names == ["step", "token"]
    assert list(frame.columns) == ["token_text", "speed", "turned"]
    assert frame.loc[("L1", 5)].tolist() == ['b"', 4.0, 40.0]
    assert tables["draw"].index.tolist() == [0, 1]
    assert float(tables["scalar"].logit.iloc[0]) == 0.5
    assert frame.attrs["definitions"] == {"speed": "how fast"}
    assert frame.attrs["units"] == {"speed": "radians"}


def test_tables_have_every_number_once() -> None:
    path = rs.trajectory(rs.load().trace(TEXT), draws=3)
    tables = rs.table(path)
    for name, field in path.data_vars.items():
        frame = tables[" ".join(field.dims)]
        column = frame[name].to_xarray() if len(field.dims) > 1 else frame[name]
        assert np.array_equal(np.asarray(column), field.values)
    cells = sum(field.size for field in path.data_vars.values())
    assert sum(len(frame) for frame in tables.values()) <= cells


def test_table_refuses_other_objects() -> None:
    with pytest.raises(rs.RheoscopeError, match=r"got list; type rs.table\("):
        rs.table([1])


def test_tables_have_definitions_and_provenance() -> None:
    tables = rs.table(toy())
    assert tables["step token"].attrs["nulls"] == {"speed": "turned"}
    assert tables["token"].attrs["depends_on"] == {"length": "the basis of E"}
    assert tables["scalar"].attrs["definitions"] == {"logit": "the logit"}
    for frame in tables.values():
        assert frame.attrs["provenance"] == {"analysis": "toy", "model": "a model"}
        assert frame.attrs["left_out"] == {}


def test_large_tables_are_left_out_unless_allowed() -> None:
    tables = rs.table(toy(), largest=5)
    assert list(tables) == ["token", "draw", "scalar"]
    assert tables["token"].attrs["left_out"] == {"step token": "6 rows"}
    assert "step token" in rs.table(toy(), largest=6)
    with pytest.raises(rs.RheoscopeError, match=r"more than 0 rows; type rs.table\(dataset, largest=6\)"):
        rs.table(toy(), largest=0)


def test_tables_have_token_texts() -> None:
    model = small()
    trace = model.trace(TEXT)
    for dataset, name in (
        (rs.reversed_attention(model, trace), "layer head token"),
        (rs.massive_tokens(trace, norm_ratio=1.01), "token"),
    ):
        frame = rs.table(dataset)[name].reset_index()
        assert len(frame) > 0
        assert [trace.tokens[index] for index in frame.token] == frame.token_text.tolist()


def test_tables_stay_small_where_one_table_of_everything_explodes() -> None:
    result = rs.trajectory(small().trace(TEXT))
    tables = rs.table(result)
    n_rows = sum(map(len, tables.values()))
    assert math.prod(result.sizes.values()) > 1000 * n_rows  # the rows of result.to_dataframe()
    frame = tables["step token"]
    assert list(frame.index.names) == ["step", "token"]
    assert frame.token_text.tolist()[: len(result.token)] == result.token_text.values.tolist()
    assert set(frame.attrs["definitions"]) == set(frame.columns) - {"token_text"}
    assert frame.attrs["provenance"]["text"] == TEXT
    assert frame.attrs["provenance"]["analysis"] == "trajectory"
