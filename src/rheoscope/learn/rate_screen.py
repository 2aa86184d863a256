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

from rheoscope.learn.curves import best, read
from rheoscope.learn.race import Race
from rheoscope.shapes import RheoscopeError


@dataclass(frozen=True)
class Screen:
    """How short: so many seeds, so many steps.

    >>> Screen.of("4x500")
    Screen(seeds=4, steps=500)
    """

    seeds: int
    steps: int

    @staticmethod
    def of(told: str) -> "Screen":
        """As a person types it: SEEDSxSTEPS."""
        found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", told)
        if found is None:
            raise RheoscopeError(f"a screen is SEEDSxSTEPS, got {told!r}; type --screen 4x500")
        return Screen(int(found[1]), int(found[2]))

    def race(self, asked: Race) -> Race:
        """The shorter race: the same schedule over fewer steps, measured at its end."""
        whole = asked.recipe
        if self.steps > whole.steps:
            raise RheoscopeError(
                f"a screen is shorter than its race of {whole.steps:,} steps, got {self.steps:,}; "
                f"type --screen {self.seeds}x{max(1, whole.steps // 4)}"
            )
        warmup = round(whole.warmup * self.steps / whole.steps)
        short = replace(whole, steps=self.steps, warmup=warmup, evaluate_every=self.steps)
        names = tuple(dict.fromkeys(map(without_dial, asked.mechanisms)))
        return replace(asked, recipe=short, mechanisms=names, seeds=self.seeds)

    def then(self, asked: Race, screened: Path) -> Race:
        """The race itself: each entrant at its best rate of the shorter one, with seeds that come after its seeds."""
        rates = best_rates(screened)
        names = dict.fromkeys([*rates, *asked.mechanisms])
        chosen = {name: rates[without_dial(name)] for name in names}
        return replace(asked, first_seed=self.seeds, chosen=chosen)


def without_dial(name: str) -> str:
    """The entrant whose rate one with a penalty takes: the same model without it.

    >>> without_dial("untied+asymmetry=0.1"), without_dial("tied:parameters")
    ('untied', 'tied:parameters')
    """
    return name.partition("+")[0]


def best_rates(out: Path) -> Mapping[str, float]:
    """The rate of the least mean loss for every entrant of a race."""
    curves = read(out)
    return {
        name: best([one for one in curves if one.entrant == name]).rate for name in {c.entrant: None for c in curves}
    }
