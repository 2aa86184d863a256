"""The report of a race: one table, JSON, CSV and a page, and errors of one line."""

import io
import json
import shutil
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rheoscope.learn import race_files, race_tables
from rheoscope.learn.comparison import compare_entrants
from rheoscope.learn.entrants import ENTRANTS, entrant_config, n_parameters
from rheoscope.learn.race_page import build_page, race_picture
from rheoscope.learn.race_report import make_job, run_race_job, show_entrants, show_report
from rheoscope.learn.race_result import FIELDS, comparison_dataset, median_speeds, race_result
from rheoscope.picture.picture import Line, Shape
from rheoscope.shapes import RheoscopeError
from tests.learn.cases import LENGTH, config
from tests.learn.test_curves import curves

TEXT = " ".join(("the cat sat on the mat", "a dog ran over hills")[i * i % 5 % 2] for i in range(300))
OPTIONS: dict[str, Any] = {
    "recipe": "tiny",
    "mechanisms": ["tied", "untied+asymmetry=1"],
    "seeds": 2,
    "rates": [1e-3, 1e-2],
    "steps": 2,
    "held_out_tokens": 64,
}
SETTINGS = ["evaluate_every=1", "batch=2", "context=8", "width=16", "heads=2", "vocabulary=characters", "depth=1"]


def run(out: Path, data: Path, join_logs: Path | None = None, settings: Sequence[str] = (), **options: Any) -> bool:
    """Run or continue a tiny race on the CPU."""
    job = make_job(None, OPTIONS | {"data": [data]} | options, [*SETTINGS, *settings])
    return run_race_job(job, out, "cpu", join_logs=join_logs)


def report(path: Path, **files: Any) -> str:
    """The printed report of a race."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as output:
        patch.setenv("COLUMNS", "160")
        show_report(path, **files)
    return output.getvalue()


@pytest.fixture(scope="module")
def finished_race(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("race")
    (folder / "book.txt").write_text(TEXT)
    assert run(folder / "run", folder / "book.txt")
    return folder / "run"


def test_the_report_prints_one_table_and_writes_every_number(finished_race: Path, tmp_path: Path) -> None:
    output = report(finished_race, json=tmp_path / "race.json")
    assert "Held-out loss after 2 steps, 2 seeds" in output
    for name in ("untied", "tied", "untied+asymmetry=1"):
        assert name in output
    assert "at the best of 2 rates, chosen on the same seeds" in output
    stored = json.loads((tmp_path / "race.json").read_text())
    assert set(stored["race"]["data_vars"]) == set(FIELDS)
    assert set(stored["tokens_per_second"]) == {"untied", "tied", "untied+asymmetry=1"}


def test_the_report_explains_columns_and_writes_tables_and_a_page(finished_race: Path, tmp_path: Path) -> None:
    output = report(finished_race, csv=tmp_path / "tables", html=tmp_path / "race.html", explain=True)
    assert "The p value after Holm's correction" in output
    assert "The p value after Holm's correction" not in report(finished_race)
    assert (tmp_path / "tables" / "race.entrant.csv").read_text().startswith("entrant,best_rate,final_loss")
    page = (tmp_path / "race.html").read_text()
    assert "Final difference from the baseline" in page
    assert "W_Q = W_K throughout" in page


def test_entrants_are_listed_with_their_descriptions() -> None:
    with redirect_stdout(io.StringIO()) as output:
        show_entrants()
    assert all(name in output.getvalue() for name in ENTRANTS)


def test_a_file_of_logs_gives_the_report_of_its_folder(finished_race: Path, tmp_path: Path) -> None:
    logs_file, second_file = tmp_path / "logs.json", tmp_path / "again.json"
    report(finished_race, logs=logs_file, json=tmp_path / "a.json")
    report(logs_file, logs=second_file, json=tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert logs_file.read_bytes() == second_file.read_bytes()
    assert list(race_files.read_all_logs(logs_file)) == list(race_files.read_all_logs(finished_race))
    size = sum(log_file.stat().st_size for log_file in finished_race.rglob(race_files.LOG_FILE))
    assert logs_file.stat().st_size < size
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


def test_entrants_join_a_race_from_its_logs(finished_race: Path, tmp_path: Path) -> None:
    race_files.write_logs(finished_race, tmp_path / "logs.json")
    data = finished_race.parent / "book.txt"
    run(tmp_path / "joined", data, tmp_path / "logs.json", mechanisms=["tied", "metric"])
    result, result_before = race_result(tmp_path / "joined"), race_result(finished_race)
    assert list(result.entrant.values) == [*result_before.entrant.values, "metric"]
    assert result.loss.sel(entrant=result_before.entrant).equals(result_before.loss)
    trained_packs = {state_file.parent.name for state_file in (tmp_path / "joined").rglob("state-*")}
    assert trained_packs == {"metric@0.001", "metric@0.01"}
    assert set(median_speeds(tmp_path / "joined")) == {"metric"}
    run(tmp_path / "alone", data, mechanisms=["metric"])
    assert result.loss.sel(entrant="metric").equals(race_result(tmp_path / "alone").loss.sel(entrant="metric"))


def test_only_finished_packs_are_restored(finished_race: Path, tmp_path: Path) -> None:
    race_files.write_logs(finished_race, tmp_path / "logs.json")
    unfinished = json.loads((tmp_path / "logs.json").read_text())
    unfinished["packs"][0]["step"][-1] -= 1
    (tmp_path / "logs.json").write_text(json.dumps(unfinished))
    settings = race_files.read_race_settings(finished_race)
    race_files.restore_from_logs(tmp_path / "logs.json", tmp_path / "joined", settings)
    assert len(list((tmp_path / "joined" / race_files.PACKS_FOLDER).iterdir())) == len(unfinished["packs"]) - 1


def test_logs_of_another_race_and_foreign_folders_are_refused(finished_race: Path, tmp_path: Path) -> None:
    logs_file, data = tmp_path / "logs.json", finished_race.parent / "book.txt"
    race_files.write_logs(finished_race, logs_file)
    with pytest.raises(
        RheoscopeError, match=r"logs\.json holds a race with seeds=2, now seeds=3; use the stored value"
    ):
        run(tmp_path / "other", data, logs_file, seeds=3)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "letter.txt").write_text("mine")
    with pytest.raises(RheoscopeError, match="contains files of other programs"):
        run(tmp_path / "foreign", finished_race / race_files.DATA_FOLDER, logs_file)
    assert [file.name for file in (tmp_path / "foreign").glob("[!.]*")] == ["letter.txt"]
    with pytest.raises(RheoscopeError, match=r"there is no file .*none\.json, expected a file written with --logs"):
        run(tmp_path / "none", data, tmp_path / "none.json")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["foreign", "logs.json"]


def test_an_unfinished_race_is_reported_up_to_the_common_step(finished_race: Path, tmp_path: Path) -> None:
    shutil.copytree(finished_race, tmp_path / "run")
    log_file = race_files.pack_folder(tmp_path / "run", "tied", 1e-2) / race_files.LOG_FILE
    log_file.write_text("".join(log_file.read_text().splitlines(keepends=True)[:4]))
    result = race_result(tmp_path / "run")
    assert result.attrs["steps"] == 1
    assert "after 1 of 2 steps (unfinished)" in race_tables.entrant_table(result).heading
    log_file.unlink()
    with pytest.raises(RheoscopeError, match="has no results for tied yet"):
        race_result(tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"mechanisms": ["metrik"]}, "there is no entrant 'metrik'; the closest name is metric"),
        ({"mechanisms": ["untied+asymmetry=x"]}, "a term after an entrant has the form NAME=NUMBER, got 'asymmetry=x'"),
        ({"mechanisms": ["untied+beauty=1"]}, "beauty"),
        ({"seeds": -1}, "seeds must be at least 1, got -1; type seeds=12"),
        ({"settings": ["clip=-1"]}, "clip must be between"),
    ],
)
def test_mistakes_are_errors_of_one_line_and_write_nothing(
    changes: dict[str, Any], pattern: str, tmp_path: Path
) -> None:
    (tmp_path / "book.txt").write_text(TEXT)
    with pytest.raises(RheoscopeError) as error:
        run(tmp_path / "run", tmp_path / "book.txt", **changes)
    assert pattern in str(error.value)
    assert "\n" not in str(error.value)
    assert [file.name for file in tmp_path.iterdir()] == ["book.txt"]


def test_a_report_of_a_missing_race_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RheoscopeError, match="nowhere holds no race"):
        report(tmp_path / "nowhere")


# Values


def race_settings(**settings: Any) -> dict[str, Any]:
    recipe = {"steps": 40, "config": vars(config()), "context": LENGTH}
    return {"recipe": recipe, "data": "by hand", "first_seed": 0, "chosen": {}} | settings


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
    assert len(race_tables.report_tables(result, {})) == 2
    (*_, speeds) = race_tables.report_tables(result, {"sink": 50.0, "untied": 100.0})
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
    assert rows[2][10] == "0 of 6"
    assert rows[3][11] == "1"
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
    assert "chosen on" not in race_tables.table_note(result)  # there is no choice with one rate


def test_entrants_at_an_end_of_the_grid_or_different_only_at_their_own_rate_are_named() -> None:
    final_losses, grid = torch.linspace(3.0, 3.3, 4, dtype=torch.float64), (1e-3, 2e-3, 4e-3)
    noise = 1e-3 * torch.tensor([1.0, -1.0, 2.0, -2.0])
    offsets = {  # to the baseline's best losses, at each rate
        "untied": (1.0, 0.0, 1.0),
        "sink": (1.0, -0.5, 1.0),
        "gated": (1.0, -0.3, -0.5),
        "tied": (1.0, 1.0, -0.5),
    }
    all_curves = [
        curves(name, final_losses + offset + number * noise.roll(index), rate)
        for number, (name, row) in enumerate(offsets.items())
        for index, (rate, offset) in enumerate(zip(grid, row, strict=True))
    ]
    best_rates = {"untied": 2e-3, "sink": 2e-3, "gated": 4e-3, "tied": 4e-3}
    settings = race_settings(rates=list(grid), seeds=4)
    note = race_tables.table_note(comparison_dataset(compare_entrants(all_curves, judged_rates=best_rates), settings))
    assert "Best at an end of the grid, so a wider grid may help: gated, tied." in note
    assert "Different only at its own rate, so the rate may explain the difference: tied." in note
    assert "Not trained at the baseline's rate" not in note
    assert "p is corrected for 5 contrasts with the baseline (Holm)." in note
    without_tied_at_that_rate = [c for c in all_curves if (c.entrant, c.rate) != ("tied", 2e-3)]
    incomplete = compare_entrants(without_tied_at_that_rate, judged_rates=best_rates)
    note = race_tables.table_note(comparison_dataset(incomplete, settings))
    assert "Not trained at the baseline's rate with these seeds: tied." in note
    assert "only at its own rate" not in note
    note_at_one_rate = race_tables.table_note(comparison_dataset(compare_entrants(all_curves[:6]), settings))
    assert "end of the grid" not in note_at_one_rate
    assert "only at its own rate" not in note_at_one_rate


def test_every_table_states_the_tokens_per_parameter() -> None:
    result = example_result()
    expected = f"{4000 / n_parameters(entrant_config('untied', config())):.2f}".removeprefix("0")
    for table in race_tables.report_tables(result, {"untied": 100.0}):
        column = [cell.text for cell in table.header].index("tokens/parameter")
        assert table.rows[0][column].text.removeprefix("0") == expected


def test_rates_are_plotted_if_an_entrant_has_several() -> None:
    result = example_result()
    own_rates = result.loss_by_rate.where(
        np.eye(*result.loss_by_rate.shape, dtype=bool)
    )  # every entrant at another rate
    for rates, is_drawn in ((result.loss_by_rate, True), (own_rates, False)):
        titles = {panel.title for panel in race_picture(result.assign(loss_by_rate=rates)).panels}
        assert ("Learning rates" in titles) == is_drawn
