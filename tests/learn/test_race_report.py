"""What a race tells a person: one table, JSON, CSV and a page; mistakes in one line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from rheoscope.commands.app import app
from rheoscope.learn import race_files, race_report
from rheoscope.learn.curves import compare_entrants
from rheoscope.learn.race_page import build_page, race_picture
from rheoscope.learn.race_result import FIELDS, comparison_dataset, median_speeds, race_result
from rheoscope.picture.picture import Line, Shape
from rheoscope.shapes import RheoscopeError
from tests.learn.test_curves import curves

TEXT = " ".join(("the cat sat on the mat", "a dog ran over hills")[i * i % 5 % 2] for i in range(300))
WORDS = ["tiny", "--mechanisms", "tied,untied+asymmetry=1", "--seeds", "2", "--rates", "1e-3,1e-2", "--steps", "2",
         "--held-out-tokens", "64", "--device", "cpu", "--set", "evaluate_every=1", "batch=2", "context=8", "width=16", "heads=2",
         "vocabulary=characters", "depth=1"]  # fmt: skip


def typed(*words: str) -> Any:
    return CliRunner().invoke(app, ["race", *words], env={"COLUMNS": "160"})


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("race")
    (folder / "book.txt").write_text(TEXT)
    told = typed(
        *WORDS, "--data", str(folder / "book.txt"), "--out", str(folder / "run"), "--json", str(folder / "race.json")
    )
    assert told.exit_code == 0, told.output
    return folder / "run", told


def test_the_command_races_and_tells_one_table(raced: tuple[Path, Any]) -> None:
    out, told = raced
    assert "Held-out loss after 2 steps, 2 seeds" in told.output
    for name in ("untied", "tied", "untied+asymmetry=1"):
        assert name in told.output
    assert "each at the best of 2 rates, chosen on the same seeds" in told.output
    written = json.loads((out.parent / "race.json").read_text())
    assert set(written["race"]["data_vars"]) == set(FIELDS)
    assert set(written["tokens_per_second"]) == {"untied", "tied", "untied+asymmetry=1"}


def test_the_report_is_the_same_without_racing(raced: tuple[Path, Any], tmp_path: Path) -> None:
    out, told = raced
    words = ["--json", str(tmp_path / "a.json"), "--csv", str(tmp_path / "tables"), "--html", str(tmp_path / "a.html")]
    again = typed("--report", str(out), *words, "--explain")
    assert again.exit_code == 0, again.output
    assert "how often chance goes as far" not in told.output
    assert "the same after Holm's correction" in again.output
    assert (tmp_path / "a.json").read_bytes() == (out.parent / "race.json").read_bytes()
    assert (tmp_path / "tables" / "race.entrant.csv").read_text().startswith("entrant,best_rate,final_loss")
    page = (tmp_path / "a.html").read_text()
    assert "The race" in page
    assert "W_Q = W_K throughout" in page


def test_a_file_of_logs_is_told_of_as_its_folder_is(raced: tuple[Path, Any], tmp_path: Path) -> None:
    out, _ = raced
    file, again = tmp_path / "logs.json", tmp_path / "again.json"
    assert typed("--report", str(out), "--logs", str(file), "--json", str(tmp_path / "a.json")).exit_code == 0
    told = typed("--report", str(file), "--logs", str(again), "--json", str(tmp_path / "b.json"))
    assert told.exit_code == 0, told.output
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert file.read_bytes() == again.read_bytes()
    assert list(race_files.read_all_logs(file)) == list(race_files.read_all_logs(out))
    assert file.stat().st_size < sum(log.stat().st_size for log in out.rglob(race_files.LOG_FILE))
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(RheoscopeError, match="holds no logs of a race"):
        race_result(tmp_path / "other.json")


def test_what_diverged_is_the_same_in_a_file_of_logs() -> None:
    line = {"entrant": "tied", "rate": 1e-3, "tokens": 0, "flops": 0, "train loss": None}
    lines = [
        line | {"seed": seed, "step": step, "loss": loss, "diverged": lost}
        for step, first, lost in ((0, 1.5, None), (8, None, 5), (16, None, 5))
        for seed, loss, lost in ((3, first, lost), (4, float(torch.tensor(0.1)), None))
    ]
    assert list(race_files.log_lines(race_files.log_columns(lines))) == lines


def test_others_join_a_race_of_which_the_logs_are_left(raced: tuple[Path, Any], tmp_path: Path) -> None:
    out, _ = raced
    race_files.write_logs(out, tmp_path / "logs.json")
    join = ["--data", str(out.parent / "book.txt"), "--join", str(tmp_path / "logs.json"), "--out"]
    told = typed(*WORDS, "--mechanisms", "tied,metric", *join, str(tmp_path / "joined"))
    assert told.exit_code == 0, told.output
    found, before = race_result(tmp_path / "joined"), race_result(out)
    assert list(found.entrant.values) == [*before.entrant.values, "metric"]
    assert found.loss.sel(entrant=before.entrant).equals(before.loss)
    trained = {file.parent.name for file in (tmp_path / "joined").rglob("state-*")}
    assert trained == {"metric@0.001", "metric@0.01"}
    assert set(median_speeds(tmp_path / "joined")) == {"metric"}
    alone = typed(*WORDS, "--mechanisms", "metric", *join[:2], "--out", str(tmp_path / "alone"))
    assert alone.exit_code == 0, alone.output
    assert found.loss.sel(entrant="metric").equals(race_result(tmp_path / "alone").loss.sel(entrant="metric"))


def test_only_what_is_finished_is_joined_and_the_same_race_alone(raced: tuple[Path, Any], tmp_path: Path) -> None:
    out, _ = raced
    race_files.write_logs(out, tmp_path / "logs.json")
    stopped = json.loads((tmp_path / "logs.json").read_text())
    stopped["packs"][0]["step"][-1] -= 1
    (tmp_path / "logs.json").write_text(json.dumps(stopped))
    race_files.restore_from_logs(tmp_path / "logs.json", tmp_path / "joined", race_files.read_race_settings(out))
    assert len(list((tmp_path / "joined" / race_files.PACKS_FOLDER).iterdir())) == len(stopped["packs"]) - 1
    join = ["--data", str(out.parent / "book.txt"), "--join", str(tmp_path / "logs.json"), "--out"]
    other = typed(*WORDS, "--seeds", "3", *join, str(tmp_path / "other"))
    assert "logs.json holds a race with seeds=2, now seeds=3; type the same, or another --join" in str(other.exception)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "letter.txt").write_text("mine")
    theirs = typed(*WORDS, "--data", str(out / race_files.DATA_FOLDER), *join[2:], str(tmp_path / "theirs"))
    assert "holds other files" in str(theirs.exception)
    assert [file.name for file in (tmp_path / "theirs").glob("[!.]*")] == ["letter.txt"]
    none = typed(*WORDS, *join[:2], "--join", str(tmp_path / "none.json"), "--out", str(tmp_path / "none"))
    assert f"there is no file {tmp_path / 'none.json'}; type one that --logs wrote" in str(none.exception)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["joined", "logs.json", "theirs"]


def test_a_race_that_goes_on_is_told_as_far_as_all_are(raced: tuple[Path, Any], tmp_path: Path) -> None:
    import shutil

    shutil.copytree(raced[0], tmp_path / "run")
    log = race_files.pack_folder(tmp_path / "run", "tied", 1e-2) / race_files.LOG_FILE
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:4]))
    found = race_result(tmp_path / "run")
    assert found.attrs["steps"] == 1
    assert "after 1 steps of 2, the race goes on" in race_report.entrant_table(found).heading
    log.unlink()
    with pytest.raises(RheoscopeError, match="has nothing of tied yet"):
        race_result(tmp_path / "run")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--report", "nowhere"], "holds no race"),
        (["tiny", "--mechanisms", "metrik", "--data", "a", "--out", "b"], "unknown entrant 'metrik'"),
        (["tiny", "--mechanisms", "untied+asymmetry=x", "--data", "a", "--out", "b"], "a penalty is NAME=NUMBER"),
        (
            ["tiny", "--mechanisms", "untied+beauty=1", "--data", "a", "--out", "b"],
            "penalty must be one of asymmetry",
        ),
        (["tiny", "--mechanisms", "tied", "--rates", "fast", "--data", "a", "--out", "b"], "rates are numbers"),
        (["tiny", "--mechanisms", "tied", "--set", "clip=-1", "--data", "a", "--out", "b"], "; type --set clip="),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text(TEXT)
    told = typed(*words)
    assert told.exit_code == 1
    assert isinstance(told.exception, RheoscopeError)
    assert said in str(told.exception)
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_what_is_missing_is_bad_usage() -> None:
    assert typed("tiny").exit_code == 2
    assert typed("--report", "a", "--join", "b.json").exit_code == 2
    listed = typed("--list")
    assert listed.exit_code == 0
    assert "symmetric_start" in listed.output


# Values


def by_hand(**told: Any) -> dict[str, Any]:
    return {"recipe": {"steps": 40}, "data": "by hand", "first_seed": 0, "chosen": {}} | told


def raced_by_hand() -> Any:
    """Four seeds, a dial of two strengths, an entrant that diverged."""
    draw = torch.Generator().manual_seed(0)
    base = 3.5 + 0.01 * torch.randn(6, generator=draw, dtype=torch.float64)
    lost = base.clone()
    lost[0] = torch.nan
    made = {
        "untied": base, "untied+asymmetry=0.1": base + 0.02, "untied+asymmetry=10": base + 0.2 + 0.001 * torch.arange(6), "sink": lost,
        "tied+asymmetry=1": base,
    }  # fmt: skip
    found = compare_entrants([curves(name, last, rate) for name, last in made.items() for rate in (1e-3, 1e-2)])
    return comparison_dataset(found, by_hand(rates=[1e-3, 1e-2], seeds=6))


def test_times_are_told_where_they_were_kept_and_over_the_baseline_s() -> None:
    found = raced_by_hand()
    assert len(race_report.report_tables(found, {})) == 1
    (_, told) = race_report.report_tables(found, {"sink": 50.0, "untied": 100.0})
    assert [[cell.text for cell in row[:3]] for row in told.rows] == [
        ["sink", "50", "2.00 ×"],
        ["untied", "100", "1.00 ×"],
    ]
    assert race_report.speed_table(found, {"sink": 50.0}).rows[0][2].text == ""


def test_the_table_says_what_the_numbers_are() -> None:
    found = raced_by_hand()
    told = race_report.entrant_table(found)
    rows = [[cell.text for cell in row] for row in told.rows]
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
    assert all(cell.definition for cell in told.header[1:])


def test_the_page_draws_the_dial() -> None:
    found = raced_by_hand()
    panels = {panel.title: panel for panel in race_picture(found).panels}
    assert len(panels) == 6
    told = [mark.tip for mark in panels["Who is ahead"].marks if isinstance(mark, Shape)]
    assert told[0].startswith("untied+asymmetry=10: +0.20")  # places count from below
    assert told[0].endswith("behind")
    dial = panels["Final loss along the dial: asymmetry"]
    line = next(mark for mark in dial.marks if isinstance(mark, Line) and mark.name == "asymmetry")
    assert list(line.x) == [0.1, 10]
    assert list(line.y) == pytest.approx([0.02, 0.2025])
    soon = panels["Tokens along the dial: asymmetry"]
    assert "which all reach" in soon.about
    slower = next(mark for mark in soon.marks if isinstance(mark, Line) and mark.name == "asymmetry")
    assert 1 < slower.y[0] < slower.y[1] < float("inf")
    html = build_page(found, {"untied": 100.0, "sink": 50.0}, "by hand").to_html()
    assert "2.00 ×" in html
    assert "along the dial" in html


def test_every_field_has_a_definition() -> None:
    found = raced_by_hand()
    assert set(found.data_vars) == set(FIELDS)
    assert all(field.attrs["definition"] for field in found.data_vars.values())


def test_with_halves_every_number_is_of_the_seeds_that_are_judged() -> None:
    last = torch.tensor([1.0, 1.0, 3.0, 3.2], dtype=torch.float64)
    found = compare_entrants([curves("untied", last), curves("tied", last + 1)], halves=True)
    told = comparison_dataset(found, by_hand(rates=[1e-3], seeds=4))
    assert told.final_loss.values == pytest.approx([3.1, 4.1])
    assert told.judged.values.tolist() == [2, 3]
    assert "chosen on seeds 0, 1, judged on 2, 3" not in race_report.table_note(told)  # one rate is no choice


def test_who_stands_at_another_rate_or_at_an_end_is_named() -> None:
    last, grid = torch.linspace(3.0, 3.3, 4, dtype=torch.float64), (1e-3, 2e-3, 4e-3)
    best = {"untied": 2e-3, "sink": 2e-3, "tied": 4e-3}
    every = [curves(name, last + (rate != own), rate) for name, own in best.items() for rate in grid]
    said = race_report.table_note(comparison_dataset(compare_entrants(every), by_hand(rates=list(grid), seeds=4)))
    assert "At an end of the grid, where a wider one might help: tied." in said
    assert "At another rate than the baseline, so that a difference may be the rate's: tied." in said
    assert "At " not in race_report.table_note(
        comparison_dataset(compare_entrants(every[:6]), by_hand(rates=list(grid), seeds=4))
    )


def test_rates_are_drawn_where_somebody_raced_at_several() -> None:
    found = raced_by_hand()
    own = found.loss_by_rate.where(np.eye(*found.loss_by_rate.shape, dtype=bool))  # each at a rate of its own
    for rates, drawn in ((found.loss_by_rate, True), (own, False)):
        titles = {panel.title for panel in race_picture(found.assign(loss_by_rate=rates)).panels}
        assert ("Learning rates" in titles) == drawn
