"""A screen: a shorter race with other seeds that chooses the learning rate of every entrant.

    out/screen/     every entrant at every rate, with few seeds and few steps
    out/            every entrant at its best rate, with all steps and with seeds that were not in the screen

A full race at three rates costs three races. A screen of four seeds and a quarter of the steps at three rates costs
a quarter of one race. The seeds that are judged had no part in the choice, so the p values stay valid.

Every entrant, including the baseline, is judged at the rate that a shorter run picks. Shorter runs favour higher
rates. Check a difference that depends on the rate in the screen (`rheoscope race report DIR/screen`).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rheoscope.learn.curves import best_curves, read_curves
from rheoscope.learn.race_files import SCREEN_FOLDER
from rheoscope.learn.race_plan import Race
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

RunRace = Callable[[Race, Path], bool]
"""A function that runs or continues a race in a folder and returns whether it is finished."""


@dataclass(frozen=True)
class RateScreen:
    """The size of a screen: its number of seeds and of steps.

    >>> RateScreen.parse("4x500")
    RateScreen(seeds=4, steps=500)
    """

    seeds: int
    steps: int

    @staticmethod
    def parse(text: str) -> "RateScreen":
        """A screen from SEEDSxSTEPS."""
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
        if match is None:
            raise RheoscopeError(
                Message("screen must have the form SEEDSxSTEPS, got {text!r}", text=text), use(screen="4x500")
            )
        return RateScreen(int(match[1]), int(match[2]))

    def first_race(self, race: Race) -> Race:
        """The shorter race: the same schedule over fewer steps, evaluated at its end."""
        full_recipe = race.recipe
        if self.steps > full_recipe.steps:
            raise RheoscopeError(
                Message(
                    "a screen must be at most as long as its race of {steps:,} steps, got {screen_steps:,}",
                    steps=full_recipe.steps,
                    screen_steps=self.steps,
                ),
                use(screen=f"{self.seeds}x{max(1, full_recipe.steps // 4)}"),
            )
        warmup = round(full_recipe.warmup * self.steps / full_recipe.steps)
        short_recipe = replace(full_recipe, steps=self.steps, warmup=warmup, evaluate_every=self.steps)
        names = tuple(dict.fromkeys(map(without_penalty, race.mechanisms)))
        return replace(race, recipe=short_recipe, mechanisms=names, seeds=self.seeds)

    def main_race(self, race: Race, screen_folder: Path) -> Race:
        """The full race: each entrant at its best rate of the screen, with seeds after those of the screen."""
        rates = best_rates(screen_folder)
        names = dict.fromkeys([*rates, *race.mechanisms])
        chosen_rates = {name: (rates[without_penalty(name)],) for name in names}
        return replace(race, first_seed=self.seeds, chosen=chosen_rates)

    def choose_rates(self, race: Race, out: Path, run: RunRace) -> Race | None:
        """Run the screen. Returns the race at the chosen rates; None if a time limit ended the screen."""
        folder = out / SCREEN_FOLDER
        return self.main_race(race, folder) if run(self.first_race(race), folder) else None


def without_penalty(name: str) -> str:
    """The name of the entrant without its penalty, whose rate it takes.

    >>> without_penalty("untied+asymmetry=0.1"), without_penalty("tied:parameters")
    ('untied', 'tied:parameters')
    """
    return name.partition("+")[0]


def best_rates(race_path: Path) -> Mapping[str, float]:
    """The rate with the lowest mean loss for every entrant of a race."""
    curves = read_curves(race_path)
    return {
        name: best_curves([curve for curve in curves if curve.entrant == name]).rate
        for name in {curve.entrant: None for curve in curves}
    }
