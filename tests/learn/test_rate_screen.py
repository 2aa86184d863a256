"""Screens that choose learning rates, and job files of races."""

import json
import shutil
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

from rheoscope import load, operators
from rheoscope.learn import race_files
from rheoscope.learn.geometry_over_training import learned
from rheoscope.learn.race_job import job_from_mapping, settings_from_toml
from rheoscope.learn.race_models import load_race_model
from rheoscope.learn.race_page import geometry_picture
from rheoscope.learn.race_plan import Race
from rheoscope.learn.race_report import make_job, run_race_job, show_report
from rheoscope.learn.race_result import best_rate_observations, race_result
from rheoscope.learn.race_tables import entrant_table, table_note
from rheoscope.learn.rate_screen import RateScreen
from rheoscope.models.recipes import tiny
from rheoscope.picture.picture import Line
from rheoscope.shapes import RheoscopeError
from tests.learn.test_race_report import TEXT

RACES = Path(__file__).parents[2] / "benchmarks" / "races"
JOB = """
recipe = "encoder"
mechanisms = ["tied", "untied+asymmetry=1"]
data = ["book.txt"]
seeds = 3
rates = [1e-5, 1e-2]
screen = "2x4"
held_out_tokens = 64
look = [0, 8]

[set]
steps = 8
warmup = 2
evaluate_every = 4
batch = 2
context = 8
width = 16
heads = 2
depth = 1
vocabulary = "characters"
"""


@pytest.fixture(scope="module")
def screened_race(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("screened")
    (folder / "book.txt").write_text(TEXT)
    (folder / "job.toml").write_text(JOB)
    assert run_race_job(make_job(folder / "job.toml", {}, []), folder / "run", "cpu")
    return folder / "run"


def test_entrants_run_at_the_best_rate_of_the_screen_with_new_seeds(screened_race: Path) -> None:
    out = screened_race
    screen_settings, race_settings = (
        race_files.read_race_settings(out / race_files.SCREEN_FOLDER),
        race_files.read_race_settings(out),
    )
    assert (screen_settings["seeds"], screen_settings["recipe"]["steps"], screen_settings["recipe"]["warmup"]) == (
        2,
        4,
        1,
    )
    assert screen_settings["mechanisms"] == ["untied", "tied"]  # a penalised entrant takes the rate of the plain one
    assert race_settings["chosen"] == {
        name: [1e-2]  # 1e-5 is too small to learn
        for name in ("untied", "tied", "untied+asymmetry=1")
    }
    assert {line["seed"] for line in race_files.read_all_logs(out / race_files.SCREEN_FOLDER)} == {0, 1}
    assert {line["seed"] for line in race_files.read_all_logs(out)} == {2, 3, 4}
    assert {line["rate"] for line in race_files.read_all_logs(out)} == {1e-2}
    result = race_result(out)
    assert result.loss_by_rate.isnull().values.tolist() == [[True, False]] * 3
    assert "best of 2 rates, chosen on seeds 0, 1 and judged on seeds 2–4" in table_note(result)
    assert entrant_table(result).heading == "Held-out loss after 8 steps, 3 seeds"


def test_models_of_a_screened_race_load_by_seed_number(screened_race: Path) -> None:
    out = screened_race
    weights, other_weights = (load_race_model(out, "tied", seed).unembed.weight for seed in (2, 3))
    assert not weights.equal(other_weights)
    with pytest.raises(RheoscopeError, match="with seeds 2 to 4"):
        load_race_model(out, "tied", 1)


def test_the_first_seed_of_each_entrant_is_observed(screened_race: Path, tmp_path: Path) -> None:
    out = screened_race
    race_files.write_logs(out, tmp_path / "logs.json")
    for path in (out, tmp_path / "logs.json"):
        observations = race_files.read_observations(path, "tied", 1e-2)
        assert [observation["step"] for observation in observations] == [0, 8]
        assert observations[1]["values"]["symmetry"] == pytest.approx(1)
    assert not list((out / race_files.SCREEN_FOLDER).rglob("looks"))
    result = learned(race_files.pack_folder(out, "untied", 1e-2))
    model = load(load_race_model(out, "untied", seed=2))
    assert float(result.symmetry[-1]) == pytest.approx(float(operators(model.view, draws=0).symmetry.mean()), abs=1e-5)


def test_only_evaluation_steps_can_be_observed(screened_race: Path, tmp_path: Path) -> None:
    job = make_job(screened_race.parent / "job.toml", {"look": "0,3"}, [])
    with pytest.raises(RheoscopeError, match=r"look must be an evaluation step \(0, 4, 8\), got 3") as error:
        run_race_job(job, tmp_path / "run", "cpu")
    assert error.value.on("shell").endswith("; type --look 0,8")
    assert not (tmp_path / "run").exists()


def test_a_job_file_holds_the_typed_settings(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    job = job_from_mapping(settings_from_toml(tmp_path / "job.toml") | {"seeds": 5})
    assert job.data == (tmp_path / "book.txt",)
    assert job.build_race().seeds == 5
    assert job.build_recipe().config.width == 16
    assert job.build_rate_choice() == RateScreen(2, 4)


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"beauty": 1}, "a race has no setting 'beauty'"),
        ({"mechanisms": "tied"}, "mechanisms must be a list"),
        ({"screen": 4}, "screen must be a string"),
    ],
)
def test_an_invalid_job_is_refused(changes: dict[str, Any], pattern: str) -> None:
    with pytest.raises(RheoscopeError, match=pattern):
        job_from_mapping({"recipe": "tiny", "mechanisms": ["tied"], "data": ["a"]} | changes)


@pytest.mark.parametrize("file", sorted(RACES.glob("*.toml")), ids=lambda file: file.stem)
def test_the_published_job_files_are_valid(file: Path) -> None:
    """Every entrant runs at the best of the same rates, chosen in a screen or in the race itself."""
    job = job_from_mapping(settings_from_toml(file))
    screen = job.build_rate_choice()
    assert len(job.build_race().packs()) >= 9
    assert len(job.rates) >= 2
    assert (
        not isinstance(screen, RateScreen)
        or screen.first_race(job.build_race()).recipe.steps <= job.build_recipe().steps / 4
    )


def test_the_page_plots_the_observations(screened_race: Path) -> None:
    panels = {panel.title: panel for panel in geometry_picture(best_rate_observations(screened_race)).panels}
    tied_line = next(mark for mark in panels["Symmetry"].marks if isinstance(mark, Line) and mark.name == "tied")
    assert list(tied_line.x) == [0, 8]
    assert list(tied_line.y) == pytest.approx([1, 1])


def test_a_screen_must_not_be_longer_than_its_race() -> None:
    with pytest.raises(RheoscopeError, match="type screen='4x50'"):
        RateScreen(4, 900).first_race(Race(tiny(), ("tied",)))
    with pytest.raises(RheoscopeError, match="screen must have the form SEEDSxSTEPS"):
        RateScreen.parse("short")


def test_entrants_may_join_a_screened_race(screened_race: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(screened_race, tmp_path / "copy"))
    settings_before = race_files.read_race_settings(out)
    joined_settings = race_files.store_or_check_race(
        out,
        json.loads(json.dumps(settings_before))
        | {"mechanisms": ["untied", "gated"], "chosen": {"untied": [1e-2], "gated": [1e-5]}},
    )
    assert joined_settings["chosen"] == settings_before["chosen"] | {"gated": [1e-5]}
    assert joined_settings["mechanisms"] == [*settings_before["mechanisms"], "gated"]


def test_logs_include_the_screen_and_restore_it(screened_race: Path, tmp_path: Path) -> None:
    out, file = screened_race, tmp_path / "logs.json"
    show_report(out, logs=file)
    assert {path.name for path in tmp_path.iterdir()} == {"logs.json", "logs.screen.json"}
    job = make_job(out.parent / "job.toml", {"mechanisms": ["tied", "gated"]}, [])
    run_race_job(job, tmp_path / "joined", "cpu", join_logs=file)
    trained_packs = {
        path.parent.relative_to(tmp_path / "joined").as_posix() for path in (tmp_path / "joined").rglob("state-*")
    }
    assert trained_packs == {"screen/packs/gated@1e-05", "screen/packs/gated@0.01", "packs/gated@0.01"}
    result, result_before = race_result(tmp_path / "joined"), race_result(out)
    assert result.loss.sel(entrant=result_before.entrant).equals(result_before.loss)
    assert "gated" in best_rate_observations(tmp_path / "joined")
    assert best_rate_observations(tmp_path / "joined")["tied"] == best_rate_observations(out)["tied"]


def test_the_example_plots_a_race(screened_race: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path(__file__).parents[2] / "examples" / "plot_race.py"
    script = run_path(str(file))
    race_files.write_logs(screened_race, tmp_path / "logs.json")
    monkeypatch.setattr("sys.argv", ["plot_race.py", str(tmp_path / "logs.json"), "--out", str(tmp_path / "figures")])
    script["main"]()
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        "race-differences.png", "race-curves.png", "race-logs-target.png", "race-logs-geometry.png"
    }  # fmt: skip
    assert script["spread"]([0.0, 0.01, 1.0], 0.1) == pytest.approx([-0.03, 0.07, 0.97])
