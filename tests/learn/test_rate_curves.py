"""Rate curves: a grid that grows until every optimum is inside, new seeds at the chosen rates, and stops in time."""

import math
import shutil
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
import torch

from rheoscope.learn import race_files, time_limit
from rheoscope.learn.comparison import compare_entrants
from rheoscope.learn.curves import Curves
from rheoscope.learn.race import TrainingMode, run_race
from rheoscope.learn.race_plan import Race
from rheoscope.learn.race_report import PaceEstimate, make_job, run_race_job, show_report
from rheoscope.learn.race_result import race_result
from rheoscope.learn.race_tables import rate_table, table_note
from rheoscope.learn.rate_curves import MAX_EXTENSIONS, RateCurves, basin
from rheoscope.learn.time_limit import TimeLimit
from rheoscope.shapes import RheoscopeError
from tests.learn.cases import Letters, recipe
from tests.learn.test_race import files
from tests.learn.test_race_report import SETTINGS, TEXT

GRID = (1e-3, 2e-3, 4e-3, 8e-3, 16e-3)


def write_final_losses(race: Race, folder: Path, optimum: dict[str, float]) -> bool:
    """Instead of training: the logs of a race whose loss is lowest at the entrant's `optimum`."""
    race_files.store_or_check_race(folder, race.to_json(Letters()))
    for pack in race.packs():
        loss = abs(math.log2(pack.recipe.rate / optimum[pack.entrant]))
        entry = {"entrant": pack.entrant, "rate": pack.recipe.rate, "tokens": 1, "flops": 1, "diverged": None}
        lines = [
            entry | {"step": step, "seed": seed, "loss": loss + seed, "train loss": loss}
            for step in race.evaluation_steps()
            for seed in pack.seeds
        ]
        race_files.save_state(race_files.pack_folder(folder, pack.entrant, pack.recipe.rate), 6, {}, lines)
    return True


def test_a_grid_grows_until_each_optimum_is_inside(tmp_path: Path) -> None:
    optimum, grids = {"untied": 4e-3, "tied": 64e-3, "metric": 5e-4}, []

    def run(race: Race, folder: Path) -> bool:
        grids.append({pack.entrant: [] for pack in race.packs()})
        for pack in race.packs():
            grids[-1][pack.entrant].append(pack.recipe.rate)
        return write_final_losses(race, folder, optimum)

    race = Race(recipe(), ("tied", "metric"), 3, GRID)
    main_race = RateCurves(seeds=2).choose_rates(race, tmp_path, run)
    assert main_race is not None
    assert main_race.chosen == {"untied": (4e-3, 64e-3, 5e-4), "tied": (64e-3, 4e-3), "metric": (5e-4, 4e-3)}
    assert main_race.seed_numbers() == (2, 3, 4)
    assert grids[-1]["untied"] == list(GRID)
    assert grids[-1]["tied"] == [*GRID, 32e-3, 64e-3, 128e-3]
    assert grids[-1]["metric"] == [25e-5, 5e-4, *GRID]
    again: list[Race] = []
    resumed = RateCurves(seeds=2).choose_rates(race, tmp_path, lambda race, folder: not again.append(race))
    assert resumed == main_race
    assert len(again) == len(grids)  # the same rounds, all of them finished


def test_the_extension_of_a_grid_has_a_limit(tmp_path: Path) -> None:
    race = Race(recipe(), ("tied",), 3, GRID)
    optimum = {"untied": 4e-3, "tied": 100.0}
    main_race = RateCurves(2).choose_rates(
        race, tmp_path, lambda race, folder: write_final_losses(race, folder, optimum)
    )
    assert main_race is not None
    assert main_race.chosen["tied"][0] == GRID[-1] * 2**MAX_EXTENSIONS


def test_unsuitable_grids_are_refused() -> None:
    for rates in ((1e-3, 2e-3, 4e-3, 8e-3), (1e-3, 3e-3, 9e-3, 27e-3, 81e-3)):
        with pytest.raises(RheoscopeError, match=r"at least 5 rates, each 2 times the one before, got 0\.001"):
            RateCurves().first_race(Race(recipe(), ("tied",), rates=rates))
    assert RateCurves().first_race(Race(recipe(rate=1e-3), ())).rates == (25e-5, 5e-4, 1e-3, 2e-3, 4e-3)
    job = make_job(None, {"recipe": "tiny", "mechanisms": ["tied"], "screen": "4x5", "curves": 4}, [])
    with pytest.raises(RheoscopeError, match="a screen or by curves, got both"):
        job.build_rate_choice()


def make_curves(entrant: str, rate: float, losses: list[float]) -> Curves:
    loss, seeds = torch.tensor(losses)[:, None], tuple(range(len(losses)))
    return Curves(entrant, rate, seeds, (1,), (1,), (1,), loss, loss, (None,) * len(losses))


def test_an_entrant_is_judged_at_its_chosen_rate_and_compared_at_the_baselines() -> None:
    curves = [
        make_curves("untied", 1e-3, [3.0, 3.1, 3.2, 3.3]),
        make_curves("tied", 1e-3, [3.1, 3.3, 3.3, 3.4]),
        make_curves("tied", 2e-3, [2.9, 2.9, 3.1, 3.2]),
    ]
    _, tied = compare_entrants(curves, judged_rates={"untied": 1e-3, "tied": 2e-3}).rows
    assert float(tied.difference.mean) == pytest.approx(-0.125)
    assert tied.at_baseline_rate is not None
    assert float(tied.at_baseline_rate.difference.mean) == pytest.approx(0.125)
    _, lucky = compare_entrants(curves, judged_rates={"untied": 1e-3, "tied": 1e-3}).rows
    assert float(lucky.difference.mean) == pytest.approx(0.125)  # the judged seeds have no part in the choice


@pytest.mark.parametrize(
    ("losses", "ends"),
    [
        ({1.0: 3.0, 2.0: 2.9, 4.0: 2.91, 8.0: 2.93}, (2.0**0.8, 4.0 * 2.0**0.5)),
        ({1.0: 2.91, 2.0: 2.94, 4.0: 2.9}, (4.0 * 0.5**0.5, 4.0)),  # a basin has no gaps
        ({1.0: 2.91, 2.0: 2.9, 4.0: math.nan}, (1.0, 2.0)),
    ],
)
def test_the_basin_holds_the_rates_within_its_depth(losses: dict[float, float], ends: tuple[float, float]) -> None:
    assert basin(losses) == pytest.approx(ends)


# With training


def run(out: Path, data: Path, limit: float | None = None, **options: Any) -> bool:
    settings = {"recipe": "tiny", "mechanisms": ["tied"], "data": [data], "seeds": 2, "curves": 1, "steps": 2}
    job = make_job(
        None, settings | {"rates": [16e-3 * 2**k for k in range(5)], "held_out_tokens": 64} | options, SETTINGS
    )
    return run_race_job(job, out, "cpu", time_limit=limit)


@pytest.fixture(scope="module")
def race_with_curves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("curves")
    (folder / "book.txt").write_text(TEXT)
    assert run(folder / "run", folder / "book.txt")
    return folder / "run"


def test_the_report_has_the_losses_at_every_rate(race_with_curves: Path, tmp_path: Path) -> None:
    result = race_result(race_with_curves)
    curve_folder = race_with_curves / race_files.CURVES_FOLDER
    curve_losses = {
        (line["entrant"], line["rate"]): line["loss"]
        for line in race_files.read_all_logs(curve_folder)
        if line["step"] == 2
    }
    for (entrant, rate), loss in curve_losses.items():
        assert float(result.loss_by_rate.sel(entrant=entrant, rate=rate)) == loss
    for entrant in ("untied", "tied"):
        rates = [rate for name, rate in curve_losses if name == entrant]
        assert float(result.best_rate.sel(entrant=entrant)) == min(rates, key=lambda x: curve_losses[entrant, x])
    assert {line["seed"] for line in race_files.read_all_logs(race_with_curves)} == {1, 2}
    assert "chosen on seeds 0 and judged on seeds 1, 2" in table_note(result)
    assert [row[0].text for row in rate_table(result).rows] == ["untied", "tied"]
    show_report(race_with_curves, logs=tmp_path / "logs.json")
    assert {path.name for path in tmp_path.iterdir()} == {"logs.json", "logs.curves.json"}
    assert race_result(tmp_path / "logs.json").identical(result)


def test_curves_with_extended_grids_have_a_report_of_their_own(tmp_path: Path) -> None:
    """The extended grid of an entrant is no choice of other seeds, so it is judged at its best rate."""
    optimum = {"untied": 4e-3, "tied": 32e-3}
    race = Race(recipe(), ("tied",), 3, GRID)
    RateCurves(seeds=2).choose_rates(race, tmp_path, lambda race, folder: write_final_losses(race, folder, optimum))
    result = race_result(tmp_path / race_files.CURVES_FOLDER)
    assert result.best_rate.sel(entrant="tied") == 32e-3
    assert result.loss_by_rate.sel(entrant="tied").notnull().all()
    assert result.rate.values[-1] == 64e-3
    assert "chosen on the same seeds" in table_note(result)


def test_the_pace_starts_anew_with_the_main_race(monkeypatch: pytest.MonkeyPatch) -> None:
    pace, seconds = PaceEstimate(), iter([0.0, 1.0, 5.0, 6.0])
    monkeypatch.setattr("time.monotonic", lambda: next(seconds))
    paces = [pace(tokens, total) for tokens, total in [(0, 1000), (900, 1000), (0, 400), (100, 400)]]
    assert str(paces[-1]) == "100 tokens/s, 3 s left"


def test_the_example_plots_rate_curves(race_with_curves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = run_path(str(Path(__file__).parents[2] / "examples" / "plot_race.py"))
    monkeypatch.setattr("sys.argv", ["plot_race.py", str(race_with_curves / "curves"), "--out", str(tmp_path)])
    script["main"]()
    assert (tmp_path / "race-curves-rates.png").is_file()
    assert script["projections"](["qk_norm", "tied_no_diagonal", "projection=tied"]) == {
        "untied": ["qk_norm"], "tied": ["tied_no_diagonal", "projection=tied"]
    }  # fmt: skip


def test_a_race_that_stops_in_time_continues_to_the_same_files(
    race_with_curves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock advances with each reading, so that every call trains a few intervals."""
    out, data, calls = tmp_path / "run", race_with_curves.parent / "book.txt", 0
    ticks = iter(range(10**6))
    monkeypatch.setattr(time_limit.time, "monotonic", lambda: float(next(ticks)))
    while not run(out, data, limit=25.0):
        calls += 1
        monkeypatch.setattr(time_limit.time, "monotonic", lambda: float(next(ticks)))
    monkeypatch.undo()
    assert calls > 2
    folders = (race_files.CURVES_FOLDER, race_files.PACKS_FOLDER)
    for folder in folders:
        assert files(out / folder) == files(race_with_curves / folder)


def test_a_finished_pack_needs_only_its_log(race_with_curves: Path, tmp_path: Path) -> None:
    """A race whose weights were removed goes on, because its packs are trained one after another."""
    out = Path(shutil.copytree(race_with_curves, tmp_path / "run"))
    for state in out.rglob("state-*"):
        state.unlink()
    assert run(out, race_with_curves.parent / "book.txt", mechanisms=["tied", "metric"])
    trained_packs = {state.parent.name.partition("@")[0] for state in out.rglob("state-*")}
    assert trained_packs == {"metric"}


def test_sequential_packs_give_the_files_of_alternating_ones(tmp_path: Path) -> None:
    race = Race(recipe(), ("tied",), 2, (1e-2,))
    names: list[str] = []
    assert run_race(race, Letters(), tmp_path / "alternating", "cpu")
    assert run_race(
        race,
        Letters(),
        tmp_path / "sequential",
        "cpu",
        TrainingMode(sequential=True),
        lambda tokens, total, name: names.append(name),
    )
    assert names == [*["untied at rate 0.01"] * 6, *["tied at rate 0.01"] * 6]
    assert files(tmp_path / "sequential") == files(tmp_path / "alternating")


def test_an_interval_that_would_end_too_late_is_not_started(tmp_path: Path) -> None:
    limit = TimeLimit.of_seconds(3600.0)
    limit.longest_interval = 7200.0
    assert not run_race(Race(recipe(), (), 2, (1e-2,)), Letters(), tmp_path / "out", "cpu", time_limit=limit)
    assert not list((tmp_path / "out").rglob(race_files.LOG_FILE))
