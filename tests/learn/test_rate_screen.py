"""Rates chosen in a shorter race before, and a race as a file."""

import json
import shutil
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from typer.testing import CliRunner

from rheoscope import load, operators
from rheoscope.commands.app import app
from rheoscope.learn import race_files
from rheoscope.learn.geometry_over_training import learned
from rheoscope.learn.race_job import job_from_mapping, settings_from_toml
from rheoscope.learn.race_models import load_race_model
from rheoscope.learn.race_page import geometry_picture
from rheoscope.learn.race_plan import Race
from rheoscope.learn.race_report import table_note
from rheoscope.learn.race_result import best_rate_observations, race_result
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
def raced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("screened")
    (folder / "book.txt").write_text(TEXT)
    (folder / "job.toml").write_text(JOB)
    words = ["race", "--job", str(folder / "job.toml"), "--out", str(folder / "run"), "--device", "cpu"]
    told = CliRunner().invoke(app, words, env={"COLUMNS": "160"})
    assert told.exit_code == 0, told.output
    return folder / "run", told


def test_each_races_at_its_best_rate_of_the_screen_with_other_seeds(raced: tuple[Path, Any]) -> None:
    out, told = raced
    screened, whole = race_files.read_race_settings(out / race_files.SCREEN_FOLDER), race_files.read_race_settings(out)
    assert (screened["seeds"], screened["recipe"]["steps"], screened["recipe"]["warmup"]) == (2, 4, 1)
    assert screened["mechanisms"] == ["untied", "tied"]  # a dial takes the rate of the same without it
    assert whole["chosen"] == dict.fromkeys(["untied", "tied", "untied+asymmetry=1"], 1e-2)  # 1e-5 learns nothing
    assert {line["seed"] for line in race_files.read_all_logs(out / race_files.SCREEN_FOLDER)} == {0, 1}
    assert {line["seed"] for line in race_files.read_all_logs(out)} == {2, 3, 4}
    assert {line["rate"] for line in race_files.read_all_logs(out)} == {1e-2}
    found = race_result(out)
    assert found.loss_by_rate.isnull().values.tolist() == [[True, False]] * 3
    assert "best of 2 rates, chosen on seeds 0, 1, judged on seeds 2 to 4" in table_note(found)
    assert "Held-out loss after 8 steps, 3 seeds" in told.output


def test_models_of_a_screened_race_are_found_by_the_number_of_their_seed(raced: tuple[Path, Any]) -> None:
    out, _ = raced
    one, other = (load_race_model(out, "tied", seed).unembed.weight for seed in (2, 3))
    assert not one.equal(other)
    with pytest.raises(RheoscopeError, match="with seeds 2 to 4"):
        load_race_model(out, "tied", 1)


def test_the_first_seed_of_each_is_looked_at(raced: tuple[Path, Any], tmp_path: Path) -> None:
    out, _ = raced
    race_files.write_logs(out, tmp_path / "logs.json")
    for where in (out, tmp_path / "logs.json"):
        found = race_files.read_observations(where, "tied", 1e-2)
        assert [one["step"] for one in found] == [0, 8]
        assert found[1]["values"]["symmetry"] == pytest.approx(1)
    assert not list((out / race_files.SCREEN_FOLDER).rglob("looks"))
    told = learned(race_files.pack_folder(out, "untied", 1e-2))
    model = load(load_race_model(out, "untied", seed=2))
    assert float(told.symmetry[-1]) == pytest.approx(float(operators(model.view, draws=0).symmetry.mean()), abs=1e-5)


def test_a_race_is_looked_at_where_it_is_measured(raced: tuple[Path, Any], tmp_path: Path) -> None:
    job = str(raced[0].parent / "job.toml")
    told = CliRunner().invoke(app, ["race", "--job", job, "--out", str(tmp_path / "run"), "--look", "3"])
    assert "a race is looked at where it is measured, 0, 4, 8" in str(told.exception)
    assert not (tmp_path / "run").exists()


def test_a_job_says_what_is_typed(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    told = job_from_mapping(settings_from_toml(tmp_path / "job.toml") | {"seeds": 5})
    assert told.data == (tmp_path / "book.txt",)
    assert told.build_race().seeds == 5
    assert told.build_recipe().config.width == 16
    assert told.build_screen() == RateScreen(2, 4)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"beauty": 1}, "a race has no setting 'beauty'"),
        ({"mechanisms": "tied"}, "mechanisms is a list"),
        ({"screen": 4}, "screen is a word"),
    ],
)
def test_a_job_that_is_none_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(RheoscopeError, match=said):
        job_from_mapping({"recipe": "tiny", "mechanisms": ["tied"], "data": ["a"]} | changed)


@pytest.mark.parametrize("file", sorted(RACES.glob("*.toml")), ids=lambda file: file.stem)
def test_the_races_of_the_results_are_races(file: Path) -> None:
    """Each entrant at the best of the same rates, chosen in a shorter race or in the race itself."""
    job = job_from_mapping(settings_from_toml(file))
    shorter = job.build_screen()
    assert len(job.build_race().packs()) >= 9
    assert len(job.rates) >= 2
    assert shorter is None or shorter.screening_race(job.build_race()).recipe.steps <= job.build_recipe().steps / 4


def test_the_page_draws_what_was_seen(raced: tuple[Path, Any]) -> None:
    drawn = {panel.title: panel for panel in geometry_picture(best_rate_observations(raced[0])).panels}
    tied = next(mark for mark in drawn["Symmetry"].marks if isinstance(mark, Line) and mark.name == "tied")
    assert list(tied.x) == [0, 8]
    assert list(tied.y) == pytest.approx([1, 1])


def test_a_screen_is_shorter() -> None:
    with pytest.raises(RheoscopeError, match="type --screen 4x50"):
        RateScreen(4, 900).screening_race(Race(tiny(), ("tied",)))
    with pytest.raises(RheoscopeError, match="a screen is SEEDSxSTEPS"):
        RateScreen.parse("short")


def test_entrants_may_join_a_screened_race(raced: tuple[Path, Any], tmp_path: Path) -> None:
    out = Path(shutil.copytree(raced[0], tmp_path / "copy"))
    before = race_files.read_race_settings(out)
    joined = race_files.store_or_check_race(
        out,
        json.loads(json.dumps(before)) | {"mechanisms": ["untied", "gated"], "chosen": {"untied": 1e-2, "gated": 1e-5}},
    )
    assert joined["chosen"] == before["chosen"] | {"gated": 1e-5}
    assert joined["mechanisms"] == [*before["mechanisms"], "gated"]


def test_a_screen_is_kept_with_the_logs_and_joined_with_them(raced: tuple[Path, Any], tmp_path: Path) -> None:
    out, file = raced[0], tmp_path / "logs.json"
    run = CliRunner().invoke
    assert run(app, ["race", "--report", str(out), "--logs", str(file)]).exit_code == 0
    assert {one.name for one in tmp_path.iterdir()} == {"logs.json", "logs.screen.json"}
    words = ["race", "--job", str(out.parent / "job.toml"), "--device", "cpu", "--mechanisms", "tied,gated"]
    told = run(app, [*words, "--join", str(file), "--out", str(tmp_path / "joined")])
    assert told.exit_code == 0, told.output
    trained = {one.parent.relative_to(tmp_path / "joined").as_posix() for one in (tmp_path / "joined").rglob("state-*")}
    assert trained == {"screen/packs/gated@1e-05", "screen/packs/gated@0.01", "packs/gated@0.01"}
    found, before = race_result(tmp_path / "joined"), race_result(out)
    assert found.loss.sel(entrant=before.entrant).equals(before.loss)
    assert "gated" in best_rate_observations(tmp_path / "joined")
    assert best_rate_observations(tmp_path / "joined")["tied"] == best_rate_observations(out)["tied"]


def test_figures_are_drawn_of_a_race(raced: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path(__file__).parents[2] / "examples" / "plot_race.py"
    plotting = run_path(str(file))
    race_files.write_logs(raced[0], tmp_path / "logs.json")
    monkeypatch.setattr("sys.argv", ["plot_race.py", str(tmp_path / "logs.json"), "--out", str(tmp_path / "figures")])
    plotting["main"]()
    assert {one.name for one in (tmp_path / "figures").iterdir()} == {
        "race-differences.png", "race-curves.png", "race-logs-target.png", "race-logs-geometry.png"
    }  # fmt: skip
    assert plotting["spread"]([0.0, 0.01, 1.0], 0.1) == pytest.approx([-0.03, 0.07, 0.97])
