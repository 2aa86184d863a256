"""The report of a race: one table, JSON, CSV and a page, and errors of one line."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from rheoscope.commands.app import app
from rheoscope.learn import race_files, race_tables
from rheoscope.learn.curves import compare_entrants
from rheoscope.learn.race_page import build_page, race_picture
from rheoscope.learn.race_result import FIELDS, comparison_dataset, median_speeds, race_result
from rheoscope.picture.picture import Line, Shape
from rheoscope.shapes import RheoscopeError
from tests.learn.test_curves import curves

TEXT = " ".join(("the cat sat on the mat", "a dog ran over hills")[i * i % 5 % 2] for i in range(300))
ARGUMENTS = ["tiny", "--mechanisms", "tied,untied+asymmetry=1", "--seeds", "2", "--rates", "1e-3,1e-2", "--steps", "2",
         "--held-out-tokens", "64", "--device", "cpu", "--set", "evaluate_every=1", "batch=2", "context=8", "width=16", "heads=2",
         "vocabulary=characters", "depth=1"]  # fmt: skip


def run_command(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["race", *arguments], env={"COLUMNS": "160"})


@pytest.fixture(scope="module")
def finished_race(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("race")
    (folder / "book.txt").write_text(TEXT)
    output = run_command(
        *ARGUMENTS,
        "--data",
        str(folder / "book.txt"),
        "--out",
        str(folder / "run"),
        "--json",
        str(folder / "race.json"),
    )
    assert output.exit_code == 0, output.output
    return folder / "run", output


def test_the_command_runs_a_race_and_prints_its_table(finished_race: tuple[Path, Any]) -> None:
    out, output = finished_race
    assert "Held-out loss after 2 steps, 2 seeds" in output.output
    for name in ("untied", "tied", "untied+asymmetry=1"):
        assert name in output.output
    assert "at the best of 2 rates, chosen on the same seeds" in output.output
    stored = json.loads((out.parent / "race.json").read_text())
    assert set(stored["race"]["data_vars"]) == set(FIELDS)
    assert set(stored["tokens_per_second"]) == {"untied", "tied", "untied+asymmetry=1"}


def test_a_report_without_running_is_the_same(finished_race: tuple[Path, Any], tmp_path: Path) -> None:
    out, output = finished_race
    arguments = [
        "--json",
        str(tmp_path / "a.json"),
        "--csv",
        str(tmp_path / "tables"),
        "--html",
        str(tmp_path / "a.html"),
    ]
    report = run_command("--report", str(out), *arguments, "--explain")
    assert report.exit_code == 0, report.output
    assert "The p value after Holm's correction" not in output.output
    assert "The p value after Holm's correction" in report.output
    assert (tmp_path / "a.json").read_bytes() == (out.parent / "race.json").read_bytes()
    assert (tmp_path / "tables" / "race.entrant.csv").read_text().startswith("entrant,best_rate,final_loss")
    page = (tmp_path / "a.html").read_text()
    assert "Final difference from the baseline" in page
    assert "W_Q = W_K throughout" in page


def test_a_file_of_logs_gives_the_report_of_its_folder(finished_race: tuple[Path, Any], tmp_path: Path) -> None:
    out, _ = finished_race
    logs_file, second_file = tmp_path / "logs.json", tmp_path / "again.json"
    assert (
        run_command("--report", str(out), "--logs", str(logs_file), "--json", str(tmp_path / "a.json")).exit_code == 0
    )
    output = run_command("--report", str(logs_file), "--logs", str(second_file), "--json", str(tmp_path / "b.json"))
    assert output.exit_code == 0, output.output
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert logs_file.read_bytes() == second_file.read_bytes()
    assert list(race_files.read_all_logs(logs_file)) == list(race_files.read_all_logs(out))
    assert logs_file.stat().st_size < sum(log_file.stat().st_size for log_file in out.rglob(race_files.LOG_FILE))
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(RheoscopeError, match="holds no logs of a race"):
        race_result(tmp_path / "other.json")


def test_a_file_of_logs_keeps_divergence() -> None:
    line = {"entrant": "tied", "rate": 1e-3, "tokens": 0, "flops": 0, "train loss": None}
    lines = [
        line | {"seed": seed, "step": step, "loss": loss, "diverged": diverged}
        for step, first_loss, diverged in ((0, 1.5, None), (8, None, 5), (16, None, 5))
        for seed, loss, diverged in ((3, first_loss, diverged), (4, float(torch.tensor(0.1)), None))
    ]
    assert list(race_files.log_lines(race_files.log_columns(lines))) == lines


def test_entrants_join_a_race_from_its_logs(finished_race: tuple[Path, Any], tmp_path: Path) -> None:
    out, _ = finished_race
    race_files.write_logs(out, tmp_path / "logs.json")
    join = ["--data", str(out.parent / "book.txt"), "--join", str(tmp_path / "logs.json"), "--out"]
    output = run_command(*ARGUMENTS, "--mechanisms", "tied,metric", *join, str(tmp_path / "joined"))
    assert output.exit_code == 0, output.output
    result, result_before = race_result(tmp_path / "joined"), race_result(out)
    assert list(result.entrant.values) == [*result_before.entrant.values, "metric"]
    assert result.loss.sel(entrant=result_before.entrant).equals(result_before.loss)
    trained_packs = {logs_file.parent.name for logs_file in (tmp_path / "joined").rglob("state-*")}
    assert trained_packs == {"metric@0.001", "metric@0.01"}
    assert set(median_speeds(tmp_path / "joined")) == {"metric"}
    outcome_alone = run_command(*ARGUMENTS, "--mechanisms", "metric", *join[:2], "--out", str(tmp_path / "alone"))
    assert outcome_alone.exit_code == 0, outcome_alone.output
    assert result.loss.sel(entrant="metric").equals(race_result(tmp_path / "alone").loss.sel(entrant="metric"))


def test_only_finished_packs_of_the_same_race_are_restored(finished_race: tuple[Path, Any], tmp_path: Path) -> None:
    out, _ = finished_race
    race_files.write_logs(out, tmp_path / "logs.json")
    unfinished = json.loads((tmp_path / "logs.json").read_text())
    unfinished["packs"][0]["step"][-1] -= 1
    (tmp_path / "logs.json").write_text(json.dumps(unfinished))
    race_files.restore_from_logs(tmp_path / "logs.json", tmp_path / "joined", race_files.read_race_settings(out))
    assert len(list((tmp_path / "joined" / race_files.PACKS_FOLDER).iterdir())) == len(unfinished["packs"]) - 1
    join = ["--data", str(out.parent / "book.txt"), "--join", str(tmp_path / "logs.json"), "--out"]
    outcome_other = run_command(*ARGUMENTS, "--seeds", "3", *join, str(tmp_path / "other"))
    assert "logs.json holds a race with seeds=2, now seeds=3; use the stored value or another path" in str(
        outcome_other.exception
    )
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "letter.txt").write_text("mine")
    outcome_foreign = run_command(
        *ARGUMENTS, "--data", str(out / race_files.DATA_FOLDER), *join[2:], str(tmp_path / "theirs")
    )
    assert "contains files of other programs" in str(outcome_foreign.exception)
    assert [logs_file.name for logs_file in (tmp_path / "theirs").glob("[!.]*")] == ["letter.txt"]
    outcome_missing = run_command(
        *ARGUMENTS, *join[:2], "--join", str(tmp_path / "none.json"), "--out", str(tmp_path / "none")
    )
    assert f"there is no file {tmp_path / 'none.json'}, expected a file written with --logs" in str(
        outcome_missing.exception
    )
    assert sorted(logs_file.name for logs_file in tmp_path.iterdir()) == ["joined", "logs.json", "theirs"]


def test_an_unfinished_race_is_reported_up_to_the_common_step(finished_race: tuple[Path, Any], tmp_path: Path) -> None:
    shutil.copytree(finished_race[0], tmp_path / "run")
    log_file = race_files.pack_folder(tmp_path / "run", "tied", 1e-2) / race_files.LOG_FILE
    log_file.write_text("".join(log_file.read_text().splitlines(keepends=True)[:4]))
    result = race_result(tmp_path / "run")
    assert result.attrs["steps"] == 1
    assert "after 1 of 2 steps (unfinished)" in race_tables.entrant_table(result).heading
    log_file.unlink()
    with pytest.raises(RheoscopeError, match="has no results for tied yet"):
        race_result(tmp_path / "run")


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (["--report", "nowhere"], "holds no race"),
        (["tiny", "--mechanisms", "metrik", "--data", "a", "--out", "b"], "unknown entrant 'metrik'"),
        (
            ["tiny", "--mechanisms", "untied+asymmetry=x", "--data", "a", "--out", "b"],
            "a penalty has the form NAME=NUMBER",
        ),
        (["tiny", "--mechanisms", "untied+beauty=1", "--data", "a", "--out", "b"], "beauty"),
        (["tiny", "--mechanisms", "tied", "--rates", "fast", "--data", "a", "--out", "b"], "fast"),
        (["tiny", "--mechanisms", "tied", "--set", "clip=-1", "--data", "a", "--out", "b"], "clip must be between"),
    ],
)
def test_mistakes_are_errors_of_one_line_and_write_nothing(
    arguments: list[str], pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text(TEXT)
    output = run_command(*arguments)
    assert output.exit_code == 1
    assert isinstance(output.exception, RheoscopeError)
    assert pattern in str(output.exception)
    assert [logs_file.name for logs_file in tmp_path.iterdir()] == ["a"]


def test_missing_arguments_are_bad_usage() -> None:
    assert run_command("tiny").exit_code == 2
    assert run_command("--report", "a", "--join", "b.json").exit_code == 2
    outcome_list = run_command("--list")
    assert outcome_list.exit_code == 0
    assert "symmetric_start" in outcome_list.output


# Values


def race_settings(**settings: Any) -> dict[str, Any]:
    return {"recipe": {"steps": 40}, "data": "by hand", "first_seed": 0, "chosen": {}} | settings


def example_result() -> Any:
    """Six seeds, a penalty at two strengths, and an entrant with a diverged seed."""
    generator = torch.Generator().manual_seed(0)
    baseline_losses = 3.5 + 0.01 * torch.randn(6, generator=generator, dtype=torch.float64)
    diverged_losses = baseline_losses.clone()
    diverged_losses[0] = torch.nan
    losses_by_entrant = {
        "untied": baseline_losses,
        "untied+asymmetry=0.1": baseline_losses + 0.02,
        "untied+asymmetry=10": baseline_losses + 0.2 + 0.001 * torch.arange(6),
        "sink": diverged_losses,
        "tied+asymmetry=1": baseline_losses,
    }
    comparison = compare_entrants(
        [curves(name, final_losses, rate) for name, final_losses in losses_by_entrant.items() for rate in (1e-3, 1e-2)]
    )
    return comparison_dataset(comparison, race_settings(rates=[1e-3, 1e-2], seeds=6))


def test_speeds_are_relative_to_the_baseline() -> None:
    result = example_result()
    assert len(race_tables.report_tables(result, {})) == 1
    (_, speeds) = race_tables.report_tables(result, {"sink": 50.0, "untied": 100.0})
    assert [[cell.text for cell in row[:3]] for row in speeds.rows] == [
        ["sink", "50", "2.00 ×"],
        ["untied", "100", "1.00 ×"],
    ]
    assert race_tables.speed_table(result, {"sink": 50.0}).rows[0][2].text == ""


def test_the_table_shows_the_result() -> None:
    result = example_result()
    table = race_tables.entrant_table(result)
    rows = [[cell.text for cell in row] for row in table.rows]
    assert [row[0] for row in rows] == [
        "untied",
        "untied+asymmetry=0.1",
        "untied+asymmetry=10",
        "sink",
        "tied+asymmetry=1",
    ]
    assert rows[0][6] == "baseline"
    assert rows[2][6] == "behind"
    assert rows[2][3].startswith("+0.20")
    assert rows[2][7] == "never"
    assert rows[2][9] == "0 of 6"
    assert rows[3][10] == "1"
    assert all(cell.definition for cell in table.header[1:])


def test_the_page_plots_penalties_by_strength() -> None:
    result = example_result()
    panels = {panel.title: panel for panel in race_picture(result).panels}
    assert len(panels) == 6
    tips = [mark.tip for mark in panels["Final difference from the baseline"].marks if isinstance(mark, Shape)]
    assert tips[0].startswith("untied+asymmetry=10: +0.20")  # rows count from the bottom
    assert tips[0].endswith("behind")
    loss_panel = panels["Final loss by strength of asymmetry"]
    curve = next(mark for mark in loss_panel.marks if isinstance(mark, Line) and mark.name == "asymmetry")
    assert list(curve.x) == [0.1, 10]
    assert list(curve.y) == pytest.approx([0.02, 0.2025])
    tokens_panel = panels["Tokens by strength of asymmetry"]
    assert "which all reach" in tokens_panel.about
    tokens_curve = next(mark for mark in tokens_panel.marks if isinstance(mark, Line) and mark.name == "asymmetry")
    assert 1 < tokens_curve.y[0] < tokens_curve.y[1] < float("inf")
    html = build_page(result, {"untied": 100.0, "sink": 50.0}, "by hand").to_html()
    assert "2.00 ×" in html
    assert "by strength of asymmetry" in html


def test_every_field_has_a_definition() -> None:
    result = example_result()
    assert set(result.data_vars) == set(FIELDS)
    assert all(field.attrs["definition"] for field in result.data_vars.values())


def test_with_halves_the_numbers_are_those_of_the_judged_seeds() -> None:
    final_losses = torch.tensor([1.0, 1.0, 3.0, 3.2], dtype=torch.float64)
    comparison = compare_entrants([curves("untied", final_losses), curves("tied", final_losses + 1)], halves=True)
    result = comparison_dataset(comparison, race_settings(rates=[1e-3], seeds=4))
    assert result.final_loss.values == pytest.approx([3.1, 4.1])
    assert result.judged.values.tolist() == [2, 3]
    assert "chosen on seeds 0, 1, judged on 2, 3" not in race_tables.table_note(
        result
    )  # there is no choice with one rate


def test_entrants_at_another_rate_or_an_end_of_the_grid_are_named() -> None:
    final_losses, grid = torch.linspace(3.0, 3.3, 4, dtype=torch.float64), (1e-3, 2e-3, 4e-3)
    best_rate_by_entrant = {"untied": 2e-3, "sink": 2e-3, "tied": 4e-3}
    all_curves = [
        curves(name, final_losses + (rate != best_rate), rate)
        for name, best_rate in best_rate_by_entrant.items()
        for rate in grid
    ]
    note = race_tables.table_note(
        comparison_dataset(compare_entrants(all_curves), race_settings(rates=list(grid), seeds=4))
    )
    assert "Best at an end of the grid, so a wider grid may help: tied." in note
    assert "At another rate than the baseline, so the rate may explain the difference: tied." in note
    assert " grid" not in race_tables.table_note(
        comparison_dataset(compare_entrants(all_curves[:6]), race_settings(rates=list(grid), seeds=4))
    )


def test_rates_are_plotted_if_an_entrant_has_several() -> None:
    result = example_result()
    own_rates = result.loss_by_rate.where(
        np.eye(*result.loss_by_rate.shape, dtype=bool)
    )  # every entrant at another rate
    for rates, is_drawn in ((result.loss_by_rate, True), (own_rates, False)):
        titles = {panel.title for panel in race_picture(result.assign(loss_by_rate=rates)).panels}
        assert ("Learning rates" in titles) == is_drawn
