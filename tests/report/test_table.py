"""Tidy tables: every number once beside its place, and nothing that multiplies dimensions that do not belong together."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import rheoscope as rs
from rheoscope.report.table import save_csv

TEXT = "The keys to the cabinet are on the table"


def toy() -> xr.Dataset:
    """Fields of two, one and no dimensions, one of them with its axes the other way round, and words of two kinds."""
    grid = np.arange(6.0).reshape(2, 3)
    return xr.Dataset(
        {
            "speed": (("step", "token"), grid, {"definition": "how fast", "unit": "radians"}),
            "turned": (("token", "step"), 10 * grid.T),
            "length": ("token", [1.0, np.nan, 3.0]),
            "loose": ("draw", [7, 8]),
            "logit": ((), 0.5, {"definition": "the logit"}),
        },
        {"step": ["L0", "L1"], "token": [4, 5, 6], "word": ("token", ["a,", 'b"', "c\n"]), "seed": 3},
    )


def test_one_table_for_each_set_of_dimensions() -> None:
    tables = rs.table(toy())
    assert {name: frame.shape for name, frame in tables.items()} == {
        "step_token": (6, 3),
        "token": (3, 2),
        "draw": (2, 1),
        "scalar": (1, 1),
    }
    frame = tables["step_token"]
    assert frame.index.names == ["step", "token"]
    assert list(frame.columns) == ["word", "speed", "turned"]
    assert frame.loc[("L1", 5)].tolist() == ['b"', 4.0, 40.0]
    assert tables["draw"].index.tolist() == [0, 1]
    assert float(tables["scalar"].logit.iloc[0]) == 0.5
    assert frame.attrs["definitions"] == {"speed": "how fast"}
    assert frame.attrs["units"] == {"speed": "radians"}


def test_tables_hold_every_number_of_an_analysis_and_no_product_of_its_dimensions() -> None:
    path = rs.trajectory(rs.load().trace(TEXT), draws=3)
    tables = rs.table(path)
    for name, field in path.data_vars.items():
        frame = tables["_".join(field.dims)]
        back = frame[name].to_xarray() if len(field.dims) > 1 else frame[name]
        assert np.array_equal(np.asarray(back), field.values)
    cells = sum(field.size for field in path.data_vars.values())
    assert sum(len(frame) for frame in tables.values()) <= cells


def test_what_is_no_dataset_is_refused() -> None:
    with pytest.raises(rs.RheoscopeError, match=r"got list; type rs.table\("):
        rs.table([1])


def test_files_have_the_names_of_analyses_and_dimensions_and_read_back(tmp_path: Path) -> None:
    there = tmp_path / "out"
    assert save_csv({"toy": toy()}, there) == f"wrote 4 tables in {there}"
    assert sorted(path.name for path in there.iterdir()) == [
        "toy.draw.csv",
        "toy.scalar.csv",
        "toy.step_token.csv",
        "toy.token.csv",
    ]
    back = pd.read_csv(there / "toy.step_token.csv", index_col=["step", "token"])
    pd.testing.assert_frame_equal(back, rs.table(toy())["step_token"])
    assert (there / "toy.token.csv").read_text().splitlines()[2] == '5,"b""",'
    assert save_csv({"toy": toy()}, there).endswith("(replaced 4)")


def test_a_file_in_the_place_of_the_directory_is_kept(tmp_path: Path) -> None:
    taken = tmp_path / "out.csv"
    taken.write_text("mine")
    with pytest.raises(rs.RheoscopeError, match=r"out.csv is a file, expected a directory"):
        save_csv({"toy": toy()}, taken)
    assert taken.read_text() == "mine"


def test_a_table_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_csv({"toy": toy()}, tmp_path)
    before = (tmp_path / "toy.token.csv").read_text()

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    with pytest.raises(OSError, match="no space"):
        save_csv({"toy": toy()}, tmp_path)
    assert (tmp_path / "toy.token.csv").read_text() == before
    assert len(list(tmp_path.iterdir())) == 4
