"""Rates chosen before a race, in a shorter one with other seeds: each at the best of the same grid, at a price that can be paid.

    out/screen/     every entrant at every rate, few seeds, few steps
    out/            every entrant at the rate that was best for it there, all steps, seeds that were not in it

A full race at three rates costs three races; four seeds and a quarter of the steps at three rates cost a quarter of one. The seeds that
judge had no part in choosing, so p-values are what they say, whatever was chosen. What is compared is an entrant at the rate that a
shorter run picks, by the same rule for all, the baseline too: shorter runs like higher rates, so a difference that hangs on the rate
should be looked at in the screen (`rheoscope race --report DIR/screen`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rheoscope.learn.curves import best_curves, read_curves
from rheoscope.learn.race_plan import Race
from rheoscope.shapes import RheoscopeError


@dataclass(frozen=True)
class RateScreen:
    """How short: so many seeds, so many steps.

    >>> RateScreen.parse("4x500")
    RateScreen(seeds=4, steps=500)
    """

    seeds: int
    steps: int

    @staticmethod
    def parse(text: str) -> "RateScreen":
        """As a person types it: SEEDSxSTEPS."""
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
        if match is None:
            raise RheoscopeError(f"a screen is SEEDSxSTEPS, got {text!r}; type --screen 4x500")
        return RateScreen(int(match[1]), int(match[2]))

    def screening_race(self, race: Race) -> Race:
        """The shorter race: the same schedule over fewer steps, measured at its end."""
        full_recipe = race.recipe
        if self.steps > full_recipe.steps:
            raise RheoscopeError(
                f"a screen is shorter than its race of {full_recipe.steps:,} steps, got {self.steps:,}; "
                f"type --screen {self.seeds}x{max(1, full_recipe.steps // 4)}"
            )
        warmup = round(full_recipe.warmup * self.steps / full_recipe.steps)
        short_recipe = replace(full_recipe, steps=self.steps, warmup=warmup, evaluate_every=self.steps)
        names = tuple(dict.fromkeys(map(without_penalty, race.mechanisms)))
        return replace(race, recipe=short_recipe, mechanisms=names, seeds=self.seeds)

    def main_race(self, race: Race, screen_folder: Path) -> Race:
        """The race itself: each entrant at its best rate of the shorter one, with seeds that come after its seeds."""
        rates = best_rates(screen_folder)
        names = dict.fromkeys([*rates, *race.mechanisms])
        chosen_rates = {name: rates[without_penalty(name)] for name in names}
        return replace(race, first_seed=self.seeds, chosen=chosen_rates)


def without_penalty(name: str) -> str:
    """The entrant whose rate one with a penalty takes: the same model without it.

    >>> without_penalty("untied+asymmetry=0.1"), without_penalty("tied:parameters")
    ('untied', 'tied:parameters')
    """
    return name.partition("+")[0]


def best_rates(race_path: Path) -> Mapping[str, float]:
    """The rate of the least mean loss for every entrant of a race."""
    curves = read_curves(race_path)
    return {
        name: best_curves([curve for curve in curves if curve.entrant == name]).rate
        for name in {curve.entrant: None for curve in curves}
    }
