"""Training runs and races on the page, from their folders, while they run and afterwards."""

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rheoscope.learn.race_page import race_picture
from rheoscope.learn.race_result import race_result
from rheoscope.shapes import RheoscopeError
from rheoscope.studio import run_studio
from rheoscope.studio.model_sources import ModelSources
from rheoscope.studio.startup import StudioOptions, check_options
from rheoscope.studio.training_runs import TrainingRuns
from tests.studio.cases import error_line, render_text, running_studio, untranslated_templates
from tests.studio.run_folders import write_race, write_training_run


def titles(report: dict[str, Any]) -> list[str]:
    """The titles of all panels, and the headings of all tables."""
    titles = []
    for block in report["blocks"]:
        panels = block["picture"]["panels"] if block["block"] == "drawing" else []
        titles += [render_text(panel["title"]) for panel in panels] or [render_text(block["heading"])]
    return titles


def read_run(client: TestClient, run: str) -> dict[str, Any]:
    response = client.get(f"/api/runs/{run}")
    assert response.status_code == 200, response.text
    assert untranslated_templates(response.json()) == set()
    return response.json()


def test_the_runs_of_a_folder_are_listed(tmp_path: Path) -> None:
    write_race(tmp_path / "race")
    write_race(tmp_path / "later_race" / "screen")
    write_training_run(tmp_path / "run")
    (tmp_path / "data").mkdir()
    assert TrainingRuns(tmp_path).list_json() == {"name": tmp_path.name, "runs": ["race", "run", "later_race/screen"]}
    assert TrainingRuns(tmp_path / "run").list_json() == {"name": "run", "runs": ["run"]}


def test_a_race_is_followed_from_its_first_evaluation_to_its_end(tmp_path: Path) -> None:
    write_race(tmp_path / "race", entrants=["untied"], n_evaluations=1)
    with running_studio(training_runs=TrainingRuns(tmp_path)) as (_, client):
        assert client.get("/api/state").json()["runs"]
        started = read_run(client, "race")
        assert started["live"]
        assert "1 of 2 runs have been evaluated" in render_text(started["sentence"])
        assert titles(started) == ["Held-out loss so far"]

        write_race(tmp_path / "race", n_evaluations=2)
        running = read_run(client, "race")
        assert (running["step"], running["steps"], running["live"]) == (10, 20, True)
        assert titles(running)[:2] == ["Held-out loss so far", "Held-out loss"]

        write_race(tmp_path / "race")
        finished = read_run(client, "race")
        assert not finished["live"]
        assert render_text(finished["sentence"]) == (
            "Entrants compared with untied after 20 of 20 steps: 0 ahead, 1 behind, 0 unclear."
        )
        expected = race_picture(race_result(tmp_path / "race"))
        assert titles(finished)[: len(expected.panels)] == [panel.title for panel in expected.panels]
        band = finished["blocks"][0]["picture"]["panels"][0]["marks"][0]
        assert band["y"] == pytest.approx(list(expected.panels[0].marks[0].y))  # type: ignore[union-attr]


def test_a_training_run_has_its_losses_and_its_geometry(tmp_path: Path) -> None:
    write_training_run(tmp_path / "run", n_evaluations=2)
    with running_studio(training_runs=TrainingRuns(tmp_path / "run")) as (_, client):
        report = read_run(client, "run")
        assert report["live"]
        assert render_text(report["sentence"]) == "Step 10 of 20: held-out loss 2.500, training loss 2.500."
        assert titles(report)[:2] == ["Loss", "Symmetry"]
        loss, geometry = report["blocks"][0]["picture"]["panels"][:2]
        assert (loss["marks"][0]["x"], loss["marks"][0]["y"]) == ([0.0, 10.0], [3.0, 2.5])
        assert any(mark["y"] == pytest.approx([0.1, 0.3]) for mark in geometry["marks"])


def test_a_training_run_without_geometry_names_the_option(tmp_path: Path) -> None:
    write_training_run(tmp_path / "run", n_evaluations=0, observed=())
    with running_studio(training_runs=TrainingRuns(tmp_path)) as (_, client):
        report = read_run(client, "run")
    assert render_text(report["sentence"]) == "The run has 20 steps and no evaluation yet."
    assert "--look" in render_text(report["blocks"][0]["picture"]["caption"])


@pytest.mark.parametrize("run", ["none", "..%2Frace", "%2Fetc", "race/screen"])
def test_an_unknown_run_is_refused(tmp_path: Path, run: str) -> None:
    write_race(tmp_path / "race")
    (tmp_path / "runs").mkdir()
    with running_studio(training_runs=TrainingRuns(tmp_path / "runs")) as (_, client):
        assert "there is no run" in error_line(client.get(f"/api/runs/{run}"), 404)


def test_a_damaged_run_is_refused_in_one_line(tmp_path: Path) -> None:
    write_race(tmp_path / "race")
    (tmp_path / "race" / "race.json").write_text('{"mechanisms": ["untied"]}')
    with running_studio(training_runs=TrainingRuns(tmp_path)) as (_, client):
        assert "cannot read the run race" in error_line(client.get("/api/runs/race"), 400)


def test_a_server_without_runs_names_the_option() -> None:
    with running_studio() as (_, client):
        assert not client.get("/api/state").json()["runs"]
        for path in ("/api/runs", "/api/runs/race"):
            assert "--runs ." in error_line(client.get(path), 404)


def test_the_models_of_runs_may_be_opened(tmp_path: Path) -> None:
    run = write_training_run(tmp_path / "run")
    (run / "last").mkdir()
    for folder in (run, run / "last"):
        (folder / "config.json").write_text("{}")
    sources = ModelSources(roots=TrainingRuns(tmp_path).model_roots())
    assert {str(run.resolve()), str(run.resolve() / "last")} <= {
        str(Path(name).resolve()) for name in sources.available_names()[1:]
    }


def test_the_options_of_the_command_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RheoscopeError, match="--runs must be an existing directory"):
        check_options(StudioOptions(runs_folder=tmp_path / "none"))
    monkeypatch.setattr(run_studio, "check_installation", lambda page_folder: None)
    options = StudioOptions(runs_folder=tmp_path)
    with pytest.raises(RheoscopeError, match="--export and --runs cannot be combined"):
        run_studio.run_command(options, "127.0.0.1", 0, False, tmp_path / "page", "a", None)
