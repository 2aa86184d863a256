"""Tables as CSV files: one per set of dimensions, with definitions and provenance, never over foreign files."""

from pathlib import Path

import pandas as pd
import pytest

import rheoscope as rs
from rheoscope.report import csv_files
from rheoscope.report.csv_files import check_table_directory, save_csv
from tests.report.test_tables import toy


def test_files_are_named_after_analyses_and_dimensions_and_can_be_read_back(tmp_path: Path) -> None:
    directory = tmp_path / "out"
    assert save_csv({"toy": toy()}, directory) == f"wrote 4 tables in {directory}"
    assert sorted(path.name for path in directory.iterdir()) == [
        "definitions.csv",
        "provenance.csv",
        "toy.draw.csv",
        "toy.scalar.csv",
        "toy.step_token.csv",
        "toy.token.csv",
    ]
    frame = pd.read_csv(directory / "toy.step_token.csv", index_col=["step", "token"])
    pd.testing.assert_frame_equal(frame, rs.table(toy())["step token"])
    assert (directory / "toy.token.csv").read_text().splitlines()[2] == '5,"b""",'
    assert save_csv({"toy": toy()}, directory).endswith("(replaced 4)")


def test_a_file_in_place_of_the_directory_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("mine")
    with pytest.raises(rs.RheoscopeError, match=r"out.csv is a file, expected a directory"):
        save_csv({"toy": toy()}, path)
    assert path.read_text() == "mine"


def test_a_table_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_csv({"toy": toy()}, tmp_path)
    before = (tmp_path / "toy.token.csv").read_text()

    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(csv_files, "csv_text", fail)
    with pytest.raises(OSError, match="no space"):
        save_csv({"toy": toy()}, tmp_path)
    assert (tmp_path / "toy.token.csv").read_text() == before
    assert len(list(tmp_path.iterdir())) == 6


def test_definitions_and_provenance_describe_every_table(tmp_path: Path) -> None:
    save_csv({"toy": toy()}, tmp_path)
    definitions = pd.read_csv(tmp_path / "definitions.csv", keep_default_na=False).set_index(["file", "column"])
    assert definitions.loc[("toy.step_token.csv", "speed")].tolist() == ["toy", "how fast", "radians", "turned", ""]
    assert definitions.loc[("toy.token.csv", "length"), "depends_on"] == "the basis of E"
    for file in definitions.index.unique("file"):
        columns = pd.read_csv(tmp_path / file).columns
        assert set(definitions.loc[file].index) <= set(columns)
    provenance = pd.read_csv(tmp_path / "provenance.csv").set_index("setting").value
    assert provenance.to_dict() == {"analysis": "toy", "model": "a model"}


def test_another_analysis_adds_its_definitions(tmp_path: Path) -> None:
    save_csv({"toy": toy()}, tmp_path)
    save_csv({"more": toy().assign_attrs(model="another")[["logit"]]}, tmp_path)
    assert save_csv({"toy": toy()[["length"]]}, tmp_path) == f"wrote 1 table in {tmp_path} (replaced 1)"
    definitions = pd.read_csv(tmp_path / "definitions.csv")
    assert sorted(definitions.file.unique()) == [
        "more.scalar.csv",
        "toy.draw.csv",
        "toy.scalar.csv",
        "toy.step_token.csv",
        "toy.token.csv",
    ]
    assert not definitions.duplicated(["file", "column"]).any()
    assert set(pd.read_csv(tmp_path / "provenance.csv").value) == {"toy", "a model", "another"}


@pytest.mark.parametrize(
    "name",
    [
        "definitions.csv",
        "provenance.csv",
        "transport.step.csv",
        "compared/energy.layer.csv",
        "story.line.csv",
        "card.claim.csv",
    ],
)
def test_a_foreign_table_is_kept_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("step,mine\n0,1\n")
    for write in (check_table_directory, lambda directory: save_csv({"transport": toy()}, directory)):
        with pytest.raises(rs.RheoscopeError, match=rf"{name} exists and was not written by Rheoscope"):
            write(tmp_path)
    assert [file.name for file in tmp_path.rglob("*.csv")] == [name.rpartition("/")[2]]


def test_tables_with_other_names_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("a\n1\n")
    save_csv({"transport": toy()}, tmp_path)
    check_table_directory(tmp_path)
    assert (tmp_path / "mine.csv").read_text() == "a\n1\n"


def test_a_table_that_is_too_large_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_files, "table", lambda dataset: rs.table(dataset, largest=5))
    assert save_csv({"toy": toy()}, tmp_path).endswith("too large for CSV: toy step token")
    assert not (tmp_path / "toy.step_token.csv").exists()
