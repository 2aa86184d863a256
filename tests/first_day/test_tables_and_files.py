"""The first day with tables, values in a terminal, and files of one's own: what a new user met, as he met it."""

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import rheoscope as rs
from rheoscope.commands import analyse, app
from rheoscope.models.config import Config
from rheoscope.models.transformer import Translator
from rheoscope.report import progress_bars
from tests.report.cases import TEXT, small

Typed = Callable[..., tuple[int, str]]


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Typed:
    """Type words behind `rheoscope`, in an empty directory, with a small model: the exit code and all that was said."""
    monkeypatch.chdir(tmp_path)
    for module in (analyse, progress_bars):
        monkeypatch.setattr(module, "load_model", lambda *_, **__: small())

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["rheoscope", *words])
        with pytest.raises(SystemExit) as end:
            app.main()
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out + said.err

    return run


@pytest.fixture
def refused(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The same of words that must be refused in one line, before a model is even opened, and with every file as it was."""

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was opened")

    def run(*words: str) -> str:
        for module in (analyse, progress_bars):
            monkeypatch.setattr(module, "load_model", never)
        before = state()
        code, said = typed(*words)
        assert code == 1
        assert said.startswith("rheoscope: ")
        assert said.count("\n") == 1
        assert any(step in said for step in ("; type ", "; choose ", "cannot be both a file and the directory"))
        assert state() == before
        return said

    return run


def state() -> dict[str, bytes | str]:
    """Everything below the working directory."""
    return {
        str(path): str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
        for path in Path().rglob("*")
    }


# Tables


def test_tables_are_small_where_one_table_of_everything_explodes() -> None:
    found = rs.trajectory(small().trace(TEXT))
    tables = rs.table(found)
    rows = sum(map(len, tables.values()))
    assert math.prod(found.sizes.values()) > 1000 * rows  # the rows of found.to_dataframe(), which nobody should try
    frame = tables["step token"]
    assert list(frame.index.names) == ["step", "token"]
    assert frame.token_text.tolist()[: len(found.token)] == found.token_text.values.tolist()
    assert set(frame.attrs["definitions"]) == set(frame.columns) - {"token_text"}
    assert frame.attrs["provenance"]["text"] == TEXT
    assert frame.attrs["provenance"]["analysis"] == "trajectory"


def test_csv_is_a_file_for_each_set_of_dimensions_and_definitions(typed: Typed) -> None:
    code, said = typed("analyse", "trajectory", TEXT, "--draws", "2", "--csv", "tables")
    assert code == 0, said
    told = pd.read_csv("tables/definitions.csv", keep_default_na=False)
    assert f"wrote {told.file.nunique()} tables in tables" in said
    assert sum(path.stat().st_size for path in Path("tables").iterdir()) < 200_000
    for file, rows in told.groupby("file"):
        frame = pd.read_csv(f"tables/{file}")
        assert set(rows.column) <= set(frame.columns)
    assert told[told.column == "speed"].definition.item()
    assert TEXT in pd.read_csv("tables/provenance.csv").value.tolist()
    assert typed("analyse", "trajectory", TEXT, "--draws", "2", "--csv", "tables")[0] == 0
    assert not pd.read_csv("tables/definitions.csv").duplicated(["file", "column"]).any()


# Values


def values() -> list[Any]:
    torch.manual_seed(0)
    config = Config(vocabulary=9, width=8, depth=1, heads=2, form="encoder-decoder")
    pair, model = rs.load(Translator(config)), small()
    view = model.view
    return [
        model, view, model.trace(TEXT * 9), model.trace([TEXT, "The keys"]), view.head(1, 2), view.head(1, 2).M, view.head(1, 2).F,
        view.layer_heads[0], view.final_norm, model.description, pair, pair.view, pair.trace(([5, 6, 2], [1, 8])), pair.view.cross_heads[0],
    ]  # fmt: skip


def test_every_value_is_one_line() -> None:
    for value in values():
        assert len(repr(value)) < 320, type(value)
        assert "\n" not in repr(value)
    line = repr(small())
    for said in ("rheoscope decoder", "3 layers × 4 heads", "width 16", "float32 on cpu", "parameters"):
        assert said in line
    trace = small().trace(TEXT)
    for said in (f"{len(trace)} tokens", "The keys", f"{len(trace.points)} points", "width 16"):
        assert said in repr(trace)


def test_a_notebook_shows_a_card_and_escapes_what_stands_in_it() -> None:
    model = small()
    trace = model.trace("The <script>alert(1)</script> & keys to the cabinet")
    for value in (model, model.view, model.view.head(0, 1), trace):
        assert len(value._repr_html_()) < 20_000
    card = trace._repr_html_()
    assert "<script" not in card
    assert "&lt;" in card
    assert card.count("<code") == len(trace)
    assert card.count("<svg") == 1
    assert card.count("<circle") == len(trace) - len(trace.massive_tokens())
    assert "<svg" not in model.trace("The")._repr_html_()


# Files of others


@pytest.mark.parametrize("option", ["--html", "--json"])
def test_a_file_of_mine_is_never_replaced(option: str, refused: Callable[..., str]) -> None:
    Path("mine").write_text("years of work")
    assert "mine exists and was not written by Rheoscope" in refused("analyse", "scores", TEXT, option, "mine")


def test_an_own_report_is_replaced(typed: Typed) -> None:
    words = ("analyse", "scores", TEXT, "--html", "a.html", "--json", "below/a.json")
    assert "wrote a.html" in typed(*words)[1]
    said = typed(*words)[1]
    assert "replaced a.html" in said
    assert "replaced below/a.json" in said


@pytest.mark.parametrize(
    ("words", "name"),
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
def test_no_command_replaces_a_file_of_mine(words: list[str], name: str, refused: Callable[..., str]) -> None:
    Path(name).write_text("years of work")
    assert f"{name} exists and was not written by Rheoscope" in refused(*words)


def test_a_text_that_is_read_is_not_written_to(refused: Callable[..., str]) -> None:
    Path("x").write_text('{"written_by": "Rheoscope 0"}')  # an own file: its name alone would be free
    assert "x is the input text" in refused("--file", "x", "--html", "x")
    assert "X is the input text" in refused("analyse", "scores", "--file", "x", "--json", "X")


@pytest.mark.parametrize("other", ["x", "./x", "below/../x", "X", "link", "below/../link"])
def test_equal_names_are_refused(other: str, refused: Callable[..., str]) -> None:
    Path("below").mkdir()
    Path("link").symlink_to("x")
    assert "two outputs have the name" in refused("analyse", "scores", TEXT, "--html", "x", "--json", other)
    assert "two outputs have the name" in refused("analyse", "scores", TEXT, "--csv", other, "--json", "x")


@pytest.mark.parametrize("name", ["", ".", "/", "/dev/null", "file/report.html", "circle", "n" * 300])
@pytest.mark.parametrize("option", ["--html", "--json"])
def test_names_that_cannot_be_written_to_are_refused_before_the_computation(
    option: str, name: str, refused: Callable[..., str]
) -> None:
    Path("file").write_text("mine")
    Path("circle").symlink_to("circle")
    refused("analyse", "scores", TEXT, option, name)
    assert Path("/dev/null").is_char_device()


def test_a_file_cannot_hold_another_nor_stand_among_tables(refused: Callable[..., str]) -> None:
    assert "cannot be both a file and the directory of a/b" in refused(
        "analyse", "scores", TEXT, "--html", "a", "--json", "a/b"
    )
    assert "is reserved for the tables of t" in refused(
        "analyse", "scores", TEXT, "--csv", "t", "--json", "t/definitions.csv"
    )


def test_a_link_is_followed_and_stays(typed: Typed) -> None:
    Path("far").mkdir()
    Path("link.html").symlink_to("far/report.html")
    for did in ("wrote", "replaced"):
        assert f"{did} link.html" in typed("analyse", "scores", TEXT, "--html", "link.html")[1]
        assert Path("link.html").is_symlink()
        assert Path("far/report.html").read_text().startswith("<!doctype html>")
    assert os.listdir("far") == ["report.html"]


def test_a_report_that_cannot_be_written_is_an_error(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rheoscope.report import run_report

    Path("file").write_text("mine")
    monkeypatch.setattr(run_report, "DEFAULT_REPORT_PATH", Path("file/report.html"))
    assert "type --no-html, or --html with a path in another directory" in refused(TEXT)


@pytest.mark.parametrize("words", [[""], [" \n"], ["flow", TEXT, "--compare", ""], ["operators", "--text", " "]])
def test_an_empty_text_is_refused_at_once(words: list[str], refused: Callable[..., str]) -> None:
    assert "the text is empty" in refused(*words)


# A directory for a run


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "log.jsonl", "model.safetensors", "recipe.json"])
def test_training_leaves_a_directory_of_others_alone(name: str, refused: Callable[..., str]) -> None:
    Path("mine").mkdir()
    Path("mine", name).write_text("{}")
    Path("book.txt").write_text("to be or not to be. " * 99)
    said = refused("train", "tiny", "--data", "book.txt", "--out", "mine", "--device", "cpu")
    assert f"mine holds a {name} that no run of Rheoscope wrote" in said


@pytest.mark.parametrize("data", ["nothing.txt", "empty.txt", "short.txt"])
def test_data_that_are_refused_leave_no_directory(data: str, refused: Callable[..., str]) -> None:
    Path("empty.txt").write_text("")
    Path("short.txt").write_text("to be or not")
    refused("train", "tiny", "--data", data, "--out", "new/run", "--device", "cpu")


def test_data_of_others_are_left_alone(refused: Callable[..., str]) -> None:
    Path("run/data").mkdir(parents=True)
    Path("run/data/train.bin").write_text("mine")
    Path("book.txt").write_text("to be or not to be. " * 99)
    said = refused("train", "tiny", "--data", "book.txt", "--out", "run", "--device", "cpu")
    assert "holds a train.bin that is of no corpus" in said
