"""Loss against learning rate at full length, and the race at the rates that these curves choose.

    out/curves/     every entrant at every rate of a grid, with all steps and few seeds
    out/            every entrant at its own best rate and at the baseline's, with seeds that are not in the curves;
                    the baseline at every rate at which an entrant is judged

Each rate of the grid is twice the one before. The grid of an entrant is extended at the end where its loss is lowest,
until its best rate lies between two others, but at most `MAX_EXTENSIONS` times at either end.

The difference at the best rates answers whether an entrant learns better. The difference at the baseline's best rate
shows whether it does so only because it tolerates another rate. The basin shows how much the rate matters. The
baseline's further rates show whether its own choice was unlucky (`contrasts.py`).

Unlike a screen (`rate_screen.py`), curves run with all steps, because shorter runs favour higher rates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from rheoscope.learn.curves import Curves, best_curves, read_started_curves
from rheoscope.learn.entrants import BASELINE
from rheoscope.learn.race_files import CURVES_FOLDER
from rheoscope.learn.race_plan import Race
from rheoscope.learn.rate_screen import RunRace
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

CURVE_SEEDS = 4
MIN_RATES = 5
FACTOR = 2.0
MAX_EXTENSIONS = 6
"""How often a grid is extended at either end: to 64 times its highest or a 64th of its lowest rate."""
BASIN_DEPTH = 0.02
"""Rates whose mean loss is at most this many nats above the lowest one form the basin."""


@dataclass(frozen=True)
class RateCurves:
    """Rate curves with a number of seeds."""

    seeds: int = CURVE_SEEDS

    def first_race(self, race: Race) -> Race:
        """Every entrant at every rate of the grid, evaluated at the start and at the end."""
        rates = default_grid(race.recipe.rate) if race.rates == (race.recipe.rate,) else sorted(race.rates)
        check_grid(rates)
        recipe = replace(race.recipe, evaluate_every=race.recipe.steps)
        return replace(race, recipe=recipe, seeds=self.seeds, rates=tuple(rates))

    def extended_race(self, curve_race: Race, folder: Path) -> Race:
        """The race with one more rate for every entrant whose best rate is at an end of its grid."""
        chosen_rates = {}
        for entrant, curves in finished_curves(curve_race, folder).items():
            rates = extended_grid(best_curves(curves).rate, [curve.rate for curve in curves], curve_race.rates)
            if rates != list(curve_race.rates):
                chosen_rates[entrant] = rates
        return replace(curve_race, chosen=chosen_rates)

    def main_race(self, race: Race, curve_race: Race, folder: Path) -> Race:
        """Every entrant at its best rate and at the baseline's, with seeds after those of the curves.

        The baseline runs at its own best rate first, and at the best rate of every entrant.
        """
        best_rates = {
            entrant: best_curves(curves).rate for entrant, curves in finished_curves(curve_race, folder).items()
        }
        chosen_rates = {
            entrant: tuple(dict.fromkeys([rate, best_rates[BASELINE]])) for entrant, rate in best_rates.items()
        }
        chosen_rates[BASELINE] = tuple(dict.fromkeys([best_rates[BASELINE], *best_rates.values()]))
        rates = sorted({rate for rates in chosen_rates.values() for rate in rates})
        return replace(race, first_seed=self.seeds, rates=tuple(rates), chosen=chosen_rates)

    def choose_rates(self, race: Race, out: Path, run: RunRace) -> Race | None:
        """Run the curves. Returns the race at the chosen rates; None if a time limit ended the curves."""
        folder, curve_race = out / CURVES_FOLDER, self.first_race(race)
        while run(curve_race, folder):
            wider_race = self.extended_race(curve_race, folder)
            if wider_race == curve_race:
                return self.main_race(race, curve_race, folder)
            curve_race = wider_race
        return None


def default_grid(rate: float) -> list[float]:
    """Five rates around the rate of a recipe.

    >>> default_grid(1e-3)
    [0.00025, 0.0005, 0.001, 0.002, 0.004]
    """
    return [rate * FACTOR**power for power in range(-2, 3)]


def check_grid(rates: Sequence[float]) -> None:
    """Raise unless there are at least five rates and each is twice the one before.

    >>> check_grid([1e-3, 2e-3, 4e-3, 8e-3, 16e-3])
    """
    is_geometric = all(abs(high / low / FACTOR - 1) < 0.01 for low, high in pairwise(rates))
    if len(rates) < MIN_RATES or not is_geometric:
        grid = ",".join(f"{rate:g}" for rate in default_grid(rates[0]))
        raise RheoscopeError(
            Message(
                "rate curves need at least {n} rates, each {factor:g} times the one before, got {rates}",
                n=MIN_RATES,
                factor=FACTOR,
                rates=", ".join(f"{rate:g}" for rate in rates),
            ),
            Advice("", f"--rates {grid}"),
        )


def extended_grid(best_rate: float, rates: Sequence[float], first_grid: Sequence[float]) -> list[float]:
    """The rates of an entrant, with one more if its best rate is at an end that may be extended.

    >>> extended_grid(4e-3, [1e-3, 2e-3, 4e-3], [1e-3, 2e-3, 4e-3]), extended_grid(2e-3, [1e-3, 2e-3, 4e-3], [1e-3, 4e-3])
    ([0.001, 0.002, 0.004, 0.008], [0.001, 0.002, 0.004])
    """
    low, high, reach = min(rates), max(rates), 1.01 * FACTOR**MAX_EXTENSIONS
    lower = [low / FACTOR] if best_rate == low and min(first_grid) <= reach * low / FACTOR else []
    higher = [high * FACTOR] if best_rate == high and high * FACTOR <= reach * max(first_grid) else []
    return sorted([*lower, *rates, *higher])


def finished_curves(curve_race: Race, folder: Path) -> dict[str, list[Curves]]:
    """The curves of every entrant at the rates of a finished race. Its folder may already hold further rates."""
    rates_by_pack = {(pack.entrant, pack.recipe.rate): pack for pack in curve_race.packs()}
    curves_by_entrant: dict[str, list[Curves]] = {}
    for curve in read_started_curves(folder):
        if (curve.entrant, curve.rate) in rates_by_pack:
            curves_by_entrant.setdefault(curve.entrant, []).append(curve)
    return curves_by_entrant


def basin(loss_by_rate: Mapping[float, float]) -> tuple[float, float]:
    """The lowest and the highest rate of the basin: those around the best rate with a loss at most `BASIN_DEPTH` above it.

    Between two rates of the grid, the loss is interpolated linearly in the logarithm of the rate. The basin ends at the
    last rate that ran without divergence, if no loss beyond it is higher.

    >>> [round(rate, 5) for rate in basin({1e-3: 4.422, 2e-3: 4.340, 4e-3: 4.330, 8e-3: 4.582})]
    [0.00184, 0.00423]
    """
    rates = sorted(rate for rate, loss in loss_by_rate.items() if loss == loss)
    if not rates:
        return float("nan"), float("nan")
    best = min(range(len(rates)), key=lambda index: loss_by_rate[rates[index]])
    downwards = [(rate, loss_by_rate[rate]) for rate in reversed(rates[: best + 1])]
    upwards = [(rate, loss_by_rate[rate]) for rate in rates[best:]]
    return basin_end(downwards), basin_end(upwards)


def basin_end(points: Sequence[tuple[float, float]]) -> float:
    """The rate at which the loss first is `BASIN_DEPTH` above that of the first point, or the last rate.

    >>> round(basin_end([(1.0, 3.0), (2.0, 3.01), (8.0, 3.03)]), 6), basin_end([(1.0, 3.0)])
    (4.0, 1.0)
    """
    limit = points[0][1] + BASIN_DEPTH
    for (rate, loss), (next_rate, next_loss) in pairwise(points):
        if next_loss > limit:
            return float(rate * (next_rate / rate) ** ((limit - loss) / (next_loss - loss)))
    return points[-1][0]
