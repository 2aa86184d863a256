"""The report of the theory bench: numbers, differences, contrasts and files."""

import json
from pathlib import Path

import pytest
from rich.console import Console

import rheoscope as rs
from rheoscope.picture.blocks import Table
from rheoscope.report import theory_report as report
from rheoscope.report.terminal import Terminal
from tests.theory.cases import done


def printed_table(part: Table) -> str:
    console = Console(width=120, highlight=False)
    with console.capture() as capture:
        Terminal(console, []).print_block(part)
    return capture.get()


def test_the_list_names_every_experiment() -> None:
    output = printed_table(report.experiment_table())
    text = " ".join(output.split())
    assert all(name in text and row.source.split()[0] in text for name, row in rs.experiments().items())


def test_a_row_for_every_number_and_a_line_for_every_contrast() -> None:
    dataset = done("rank_collapse")
    table = printed_table(report.number_table(dataset))
    assert f"{float(dataset.number[0]):.4g}" in table
    assert f"{100 * float(dataset.gap[0]):.2f} %" in table
    assert len(report.contrast_lines(dataset)) == dataset.sizes["rule"] == 2
    assert report.contrast_lines(done("heat")) == []


def test_everything_is_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "dynamics", done)
    report.run_experiments(["rank_collapse", "heat"], 0, tmp_path / "figures", tmp_path / "all.json")
    output = capsys.readouterr().out
    assert "wrote" in output
    assert "coefficient of f''" in output
    dataset = json.loads((tmp_path / "all.json").read_text())
    assert dataset.pop("written_by").startswith("Rheoscope ")
    assert set(dataset) == {"rank_collapse", "heat"}
    assert dataset["heat"]["data_vars"]["expected"]["data"][:2] == [0.5, 1.0]
    assert dataset["rank_collapse"]["coords"]["why"]["data"][0] == "σ → βσ³/n"
    for name in dataset:
        assert (tmp_path / "figures" / f"dynamics-{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("value", [2.9, float("nan")])
def test_a_number_far_from_theory_raises(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    distant = done("rank_collapse").copy(deep=True)
    distant.gap[0] = abs(value - 3) / 3
    monkeypatch.setattr(report, "dynamics", lambda name, seed: distant)
    with pytest.raises(rs.RheoscopeError, match="differs by more than 2 % from theory in rank_collapse"):
        report.run_experiments(["rank_collapse"], 0, None, None)
