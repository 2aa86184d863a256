"""Simulated races without training: few false verdicts, planted advantages found, intervals that cover. Hundreds are in
benchmarks/race_statistics.py.
"""

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark() -> Iterator[dict[str, Any]]:
    """The names of the benchmark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield runpy.run_path(str(FOLDER / "race_statistics.py"), run_name="race_statistics")


@pytest.mark.parametrize("shifted", [False, True])
def test_equal_entrants_get_no_verdict(benchmark: dict[str, Any], shifted: bool) -> None:
    """More than 2 of 10 false verdicts at 5 % have a probability of 1 %. The noise is fixed by the seeds."""
    few = benchmark["ENTRANTS"][:2]
    assert benchmark["false_verdicts"](benchmark["PUBLISHED_NOISE"], 10, few, shifted, seeds=12) <= 2


def test_a_planted_advantage_of_three_hundredths_is_found(benchmark: dict[str, Any]) -> None:
    assert benchmark["planted_found"](benchmark["PILOT_NOISE"], 4, benchmark["ENTRANTS"][:2], seeds=12) == 4


def test_intervals_of_token_ratios_contain_the_true_ratio(benchmark: dict[str, Any]) -> None:
    _, ratios, target = benchmark["COVERAGES"][0]
    n_covered, n_intervals = benchmark["ratio_coverage"](benchmark["PUBLISHED_NOISE"], 10, 12, ratios, target)
    assert n_covered >= 0.9 * n_intervals


def test_a_simulated_race_has_the_planted_losses(benchmark: dict[str, Any]) -> None:
    ahead, early = benchmark["ENTRANTS"][:2]
    race = benchmark["SimulatedRace"](
        0, benchmark["Noise"](0.0, 0.0), (ahead, early), 2, advantage={ahead: 0.03}, token_ratio={early: 0.5}
    )
    first, second, baseline = (race.curves(name) for name in (ahead, early, "untied"))
    assert float(baseline.final_loss[0] - first.final_loss[0]) == pytest.approx(0.03)
    assert float(second.loss[0, len(baseline.steps) // 2]) == pytest.approx(float(baseline.final_loss[0]))
