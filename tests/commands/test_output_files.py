"""Output files: tables, never a foreign file replaced, all or nothing, and paths checked before anything is computed."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.commands.conftest import Run, directory_content
from tests.report.cases import TEXT

ANALYSE = ("analyse", "scores", TEXT)


def test_csv_writes_one_file_for_each_set_of_dimensions_and_definitions(run: Run) -> None:
    arguments = ("analyse", "trajectory", TEXT, "--draws", "2", "--csv", "tables")
    outcome = run(*arguments)
    assert outcome.status == 0, outcome.err
    definitions = pd.read_csv("tables/definitions.csv", keep_default_na=False)
    assert f"wrote {definitions.file.nunique()} tables in tables" in outcome.out
    assert sum(path.stat().st_size for path in Path("tables").iterdir()) < 200_000
    for file, rows in definitions.groupby("file"):
        assert set(rows.column) <= set(pd.read_csv(f"tables/{file}").columns)
    assert definitions[definitions.column == "speed"].definition.item()
    assert TEXT in pd.read_csv("tables/provenance.csv").value.tolist()
    assert run(*arguments).status == 0
    assert not pd.read_csv("tables/definitions.csv").duplicated(["file", "column"]).any()


# Foreign files


@pytest.mark.parametrize("option", ["--html", "--json"])
def test_a_foreign_file_is_never_replaced(option: str, refused: Callable[..., str]) -> None:
    Path("mine").write_text("years of work")
    assert "mine exists and was not written by Rheoscope; type mine-2\n" in refused(*ANALYSE, option, "mine")


def test_an_own_report_is_replaced(run: Run) -> None:
    arguments = (*ANALYSE, "--html", "a.html", "--json", "below/a.json")
    assert "wrote a.html" in run(*arguments).out
    out = run(*arguments).out
    assert "replaced a.html" in out
    assert "replaced below/a.json" in out


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["attention", "--out", "."], "rheoscope-attention.png"),
        (["attention", "--json", "a"], "a"),
        (["attention", "--laws", "--json", "a"], "a"),
        (["costs", "--json", "a"], "a"),
        (["dynamics", "heat", "--out", "."], "dynamics-heat.png"),
        (["dynamics", "heat", "--json", "a"], "a"),
        ([TEXT, "--csv", "."], "transport.step.csv"),
    ],
)
def test_no_command_replaces_a_foreign_file(arguments: list[str], name: str, refused: Callable[..., str]) -> None:
    Path(name).write_text("years of work")
    assert f"{name} exists and was not written by Rheoscope" in refused(*arguments)


def test_the_input_text_is_not_overwritten(refused: Callable[..., str]) -> None:
    Path("x").write_text('{"written_by": "Rheoscope 0"}')  # a signed file, which could be replaced otherwise
    assert "x is the input text and would be overwritten; type x-2" in refused("--file", "x", "--html", "x")
    assert "X is the input text" in refused("analyse", "scores", "--file", "x", "--json", "X")


@pytest.mark.parametrize("other", ["x", "./x", "below/../x", "X", "link", "below/../link"])
def test_two_outputs_with_one_name_are_refused(other: str, refused: Callable[..., str]) -> None:
    Path("below").mkdir()
    Path("link").symlink_to("x")
    assert "two outputs have the name" in refused(*ANALYSE, "--html", "x", "--json", other)
    assert "two outputs have the name" in refused(*ANALYSE, "--csv", other, "--json", "x")


@pytest.mark.parametrize("name", ["", ".", "/", "/dev/null", "file/report.html", "circle", "n" * 300])
@pytest.mark.parametrize("option", ["--html", "--json"])
def test_paths_that_cannot_be_written_are_refused_before_the_computation(
    option: str, name: str, refused: Callable[..., str]
) -> None:
    Path("file").write_text("mine")
    Path("circle").symlink_to("circle")
    refused(*ANALYSE, option, name)
    assert Path("/dev/null").is_char_device()


def test_a_file_cannot_contain_another_or_lie_among_the_tables(refused: Callable[..., str]) -> None:
    message = refused(*ANALYSE, "--html", "a", "--json", "a/b")
    assert "a cannot be both a file and the directory of a/b; type b\n" in message
    message = refused(*ANALYSE, "--csv", "t", "--json", "t/definitions.csv")
    assert "is reserved for the tables of t; type --csv t-tables" in message


def test_a_link_is_followed_and_stays(run: Run) -> None:
    Path("far").mkdir()
    Path("link.html").symlink_to("far/report.html")
    for verb in ("wrote", "replaced"):
        assert f"{verb} link.html" in run(*ANALYSE, "--html", "link.html").out
        assert Path("link.html").is_symlink()
        assert Path("far/report.html").read_text().startswith("<!doctype html>")
    assert os.listdir("far") == ["report.html"]


def test_a_default_report_that_cannot_be_written_is_refused(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rheoscope.report import run_report

    Path("file").write_text("mine")
    monkeypatch.setattr(run_report, "DEFAULT_REPORT_PATH", Path("file/report.html"))
    assert "type --no-html, or --html OTHER_DIR/report.html" in refused(TEXT)


@pytest.mark.parametrize("arguments", [[""], [" \n"], ["flow", TEXT, "--compare", ""], ["operators", "--text", " "]])
def test_an_empty_text_is_refused_at_once(arguments: list[str], refused: Callable[..., str]) -> None:
    assert "the text is empty" in refused(*arguments)


# A full disk


@pytest.mark.parametrize("output", [("--html", "a.html"), ("--json", "a.json"), ("--csv", "tables")])
@pytest.mark.parametrize("function", ["write", "replace"])
def test_a_full_disk_is_one_line_and_leaves_no_file(
    output: tuple[str, str], function: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_disk(monkeypatch, function)
    outcome = run(*ANALYSE, *output)
    assert outcome.status == 1
    assert outcome.err.startswith(f"rheoscope: cannot write {output[1]}: No space left on device; type df -h ")
    assert outcome.err.count("\n") == 1
    assert directory_content() == {}


@pytest.mark.parametrize("output", [("--html", "a.html"), ("--json", "a.json"), ("--csv", "tables")])
def test_a_full_disk_leaves_older_files_as_they_were(
    output: tuple[str, str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(*ANALYSE, *output).status == 0
    before = directory_content()
    for function in ("write", "replace"):
        with monkeypatch.context() as patch:
            fill_disk(patch, function)
            assert run("analyse", "scores", "The other text is short", *output).status == 1
        assert directory_content() == before


def test_a_disk_that_fills_between_two_tables_leaves_none(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("analyse", "trajectory", TEXT, "--csv", "tables").status == 0
    before = directory_content()
    assert len(before) > 4
    fill_disk(monkeypatch, "replace", n_successes=3)
    assert run("analyse", "trajectory", "The other text is short", "--csv", "tables").status == 1
    assert directory_content() == before
    assert run("analyse", "trajectory", TEXT, "--csv", "new").status == 1
    assert directory_content() == before


def fill_disk(patch: pytest.MonkeyPatch, function: str, n_successes: int = 0) -> None:
    """Make every write, or every rename after the first ones, fail as on a full disk."""
    originals = {"write_text": Path.write_text, "write_bytes": Path.write_bytes, "replace": Path.replace}
    n_calls = [0]

    def failing(name: str) -> Callable[..., Any]:
        def call(self: Path, *arguments: Any, **settings: Any) -> Any:
            n_calls[0] += 1
            if n_calls[0] <= n_successes:
                return originals[name](self, *arguments, **settings)
            if name != "replace":
                originals["write_bytes"](self, b"half")  # what fits is on the disk
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

        return call

    for name in ("replace",) if function == "replace" else ("write_text", "write_bytes"):
        patch.setattr(Path, name, failing(name))
