"""`rheoscope race run|report|list` as typed. What a race computes and reports is tested in tests/learn."""

import json
from pathlib import Path

import pytest

from tests.commands.cases import Outcome, run_rheoscope

TEXT = " ".join(("the cat sat on the mat", "a dog ran over hills")[i * i % 5 % 2] for i in range(300))
SETTINGS = ["evaluate_every=1", "batch=2", "context=8", "width=16", "heads=2", "vocabulary=characters", "depth=1"]
ARGUMENTS = ["race", "run", "tiny", "--seeds", "2", "--steps", "2", "--held-out-tokens", "64", "--device", "cpu"]


@pytest.fixture(scope="module")
def finished_race(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """A directory with a finished race in `run`, and what the command printed."""
    folder = tmp_path_factory.mktemp("race")
    (folder / "book.txt").write_text(TEXT)
    entrants = ["--mechanisms", "tied", "--mechanisms", "metric"]
    outcome = run_rheoscope(
        *ARGUMENTS, *entrants, "--data", "book.txt", "--out", "run", "--set", *SETTINGS, cwd=folder, width=160
    )
    assert outcome.status == 0, outcome.err
    return folder, outcome


def test_run_prints_the_table_of_all_entrants(finished_race: tuple[Path, Outcome]) -> None:
    _, outcome = finished_race
    assert "Held-out loss after 2 steps, 2 seeds" in outcome.words
    for name in ("untied", "tied", "metric"):
        assert name in outcome.out


def test_report_prints_the_same_table_and_writes_files(finished_race: tuple[Path, Outcome]) -> None:
    folder, outcome = finished_race
    files = ("--json", "race.json", "--csv", "tables", "--html", "race.html", "--logs", "logs.json")
    report = run_rheoscope("race", "report", "run", *files, cwd=folder, width=160)
    assert report.status == 0, report.err
    assert report.out.startswith(outcome.out.rstrip("\n"))
    assert set(json.loads((folder / "race.json").read_text())) == {"written_by", "race", "tokens_per_second"}
    assert (folder / "tables" / "race.entrant.csv").read_text().startswith("entrant,")
    assert (folder / "race.html").read_text().startswith("<!doctype html>")
    from_logs = run_rheoscope("race", "report", "logs.json", cwd=folder, width=160)
    assert from_logs.status == 0, from_logs.err
    assert "Held-out loss after 2 steps, 2 seeds" in from_logs.words


def test_a_directory_without_a_race_is_one_line(tmp_path: Path) -> None:
    outcome = run_rheoscope("race", "report", "nowhere", cwd=tmp_path)
    assert outcome.status == 1
    assert "nowhere holds no race; type " in outcome.err
    assert outcome.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
