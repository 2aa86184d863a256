"""The bench as a person sees it: numbers, gaps, contrasts, files, and a failure where a number is far."""

import json
from pathlib import Path

import pytest
from rich.console import Console

import rheoscope as rs
from rheoscope.picture.blocks import Table
from rheoscope.report import theory_report as report
from rheoscope.report.terminal import Terminal
from tests.theory.cases import done


def printed(part: Table) -> str:
    console = Console(width=120, highlight=False)
    with console.capture() as seen:
        Terminal(console, []).print_block(part)
    return seen.get()


def test_the_list_names_every_experiment() -> None:
    said = printed(report.experiment_table())
    words = " ".join(said.split())
    assert all(name in words and row.source.split()[0] in words for name, row in rs.experiments().items())


def test_a_row_for_every_number_and_a_line_for_every_contrast() -> None:
    told = done("rank_collapse")
    table = printed(report.number_table(told))
    assert f"{float(told.number[0]):.4g}" in table
    assert f"{100 * float(told.gap[0]):.2f} %" in table
    assert len(report.contrast_lines(told)) == told.sizes["rule"] == 2
    assert report.contrast_lines(done("heat")) == []


def test_everything_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report.run_experiments(["rank_collapse", "heat"], 0, tmp_path / "figures", tmp_path / "all.json")
    said = capsys.readouterr().out
    assert "wrote" in said
    assert "coefficient of f''" in said
    told = json.loads((tmp_path / "all.json").read_text())
    assert told.pop("written_by").startswith("Rheoscope ")
    assert set(told) == {"rank_collapse", "heat"}
    assert told["heat"]["data_vars"]["expected"]["data"][:2] == [0.5, 1.0]
    assert told["rank_collapse"]["coords"]["why"]["data"][0] == "σ → βσ³/n"
    for name in told:
        assert (tmp_path / "figures" / f"dynamics-{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("value", [2.9, float("nan")])
def test_a_number_that_is_far_fails(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    far = done("rank_collapse").copy(deep=True)
    far.gap[0] = abs(value - 3) / 3
    monkeypatch.setattr(report, "dynamics", lambda name, seed: far)
    with pytest.raises(rs.RheoscopeError, match="differs by more than 2 % from theory in rank_collapse"):
        report.run_experiments(["rank_collapse"], 0, None, None)
