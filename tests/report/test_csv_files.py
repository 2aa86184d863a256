"""Tables as files: one a set of dimensions, told of in two more, and never over what others wrote."""

from pathlib import Path

import pandas as pd
import pytest

import rheoscope as rs
from rheoscope.report import csv_files
from rheoscope.report.csv_files import check_table_directory, save_csv
from tests.report.test_tables import toy


def test_files_have_the_names_of_analyses_and_dimensions_and_read_back(tmp_path: Path) -> None:
    there = tmp_path / "out"
    assert save_csv({"toy": toy()}, there) == f"wrote 4 tables in {there}"
    assert sorted(path.name for path in there.iterdir()) == [
        "definitions.csv",
        "provenance.csv",
        "toy.draw.csv",
        "toy.scalar.csv",
        "toy.step_token.csv",
        "toy.token.csv",
    ]
    back = pd.read_csv(there / "toy.step_token.csv", index_col=["step", "token"])
    pd.testing.assert_frame_equal(back, rs.table(toy())["step token"])
    assert (there / "toy.token.csv").read_text().splitlines()[2] == '5,"b""",'
    assert save_csv({"toy": toy()}, there).endswith("; 4 were replaced")


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

    monkeypatch.setattr(csv_files, "csv_text", full)
    with pytest.raises(OSError, match="no space"):
        save_csv({"toy": toy()}, tmp_path)
    assert (tmp_path / "toy.token.csv").read_text() == before
    assert len(list(tmp_path.iterdir())) == 6


def test_definitions_and_provenance_stand_beside_the_tables(tmp_path: Path) -> None:
    save_csv({"toy": toy()}, tmp_path)
    told = pd.read_csv(tmp_path / "definitions.csv", keep_default_na=False).set_index(["file", "column"])
    assert told.loc[("toy.step_token.csv", "speed")].tolist() == ["toy", "how fast", "radians", "turned", ""]
    assert told.loc[("toy.token.csv", "length"), "depends_on"] == "the basis of E"
    for file in told.index.unique("file"):
        named = pd.read_csv(tmp_path / file).columns
        assert set(told.loc[file].index) <= set(named)
    where = pd.read_csv(tmp_path / "provenance.csv").set_index("setting").value
    assert where.to_dict() == {"analysis": "toy", "model": "a model"}


def test_another_analysis_adds_to_what_is_told(tmp_path: Path) -> None:
    save_csv({"toy": toy()}, tmp_path)
    save_csv({"more": toy().assign_attrs(model="another")[["logit"]]}, tmp_path)
    assert save_csv({"toy": toy()[["length"]]}, tmp_path) == f"wrote 1 tables in {tmp_path}; 1 were replaced"
    told = pd.read_csv(tmp_path / "definitions.csv")
    assert sorted(told.file.unique()) == [
        "more.scalar.csv",
        "toy.draw.csv",
        "toy.scalar.csv",
        "toy.step_token.csv",
        "toy.token.csv",
    ]
    assert not told.duplicated(["file", "column"]).any()
    assert set(pd.read_csv(tmp_path / "provenance.csv").value) == {"toy", "a model", "another"}


@pytest.mark.parametrize(
    "name", ["definitions.csv", "provenance.csv", "transport.step.csv", "compared/energy.layer.csv"]
)
def test_a_table_of_others_is_kept_and_nothing_is_written_beside_it(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("step,mine\n0,1\n")
    for refused in (check_table_directory, lambda there: save_csv({"transport": toy()}, there)):
        with pytest.raises(rs.RheoscopeError, match=rf"{name} exists and was not written by Rheoscope"):
            refused(tmp_path)
    assert [file.name for file in tmp_path.rglob("*.csv")] == [name.rpartition("/")[2]]


def test_tables_with_other_names_are_no_matter(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("a\n1\n")
    save_csv({"transport": toy()}, tmp_path)
    check_table_directory(tmp_path)
    assert (tmp_path / "mine.csv").read_text() == "a\n1\n"


def test_a_table_too_large_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_files, "table", lambda one: rs.table(one, largest=5))
    assert save_csv({"toy": toy()}, tmp_path).endswith("too large and left out: toy step token")
    assert not (tmp_path / "toy.step_token.csv").exists()
