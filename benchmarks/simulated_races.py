"""Races without training: logs with known losses, from which the package chooses rates and draws its verdicts.

    excess loss = curvature of (log2 rate − optimum) − advantage + noise shared by all runs of a seed + noise of the run

Losses over tokens follow a power law. Its exponent, the shape of the rate curve and both kinds of noise are those of the published
decoders of 3.4M parameters (`docs/results/race/small.json`) and of the pilot races.
"""

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from rheoscope.learn import race_files
from rheoscope.learn.comparison import Comparison, compare_race
from rheoscope.learn.curves import Curves
from rheoscope.learn.entrant_parts import FACTORIAL
from rheoscope.learn.entrants import BASELINE, canonical_name, entrant_configs
from rheoscope.learn.race_plan import Pack, Race
from rheoscope.learn.rate_curves import RateCurves
from rheoscope.models.config import Config
from rheoscope.models.recipes import Recipe

ENTRANTS = tuple(name for name in map(canonical_name, FACTORIAL) if name != BASELINE)
"""The 15 entrants of the factorial, by name only: nothing is trained."""
MIDDLE_RATE = 2e-3
STEPS, EVALUATIONS, TOKENS_PER_STEP = 2000, 8, 4096
RECIPE = Recipe(
    Config(4096, width=192, depth=6, heads=3, context=256),
    steps=STEPS,
    batch=16,
    context=256,
    rate=MIDDLE_RATE,
    evaluate_every=STEPS // EVALUATIONS,
)
FIRST_LOSS, LIMIT_LOSS, FALL, EXPONENT = 8.35, 2.25, 1.98, 0.253
"""The untrained loss, and loss = limit + fall · (share of the tokens)^(−exponent): a fit to the published baseline."""


@dataclass(frozen=True)
class Noise:
    """Standard deviations of the final loss: of what all runs of a seed share, and of a single run."""

    shared: float
    single: float


PILOT_NOISE, PUBLISHED_NOISE = Noise(0.011, 0.011), Noise(0.016, 0.028)
"""The spread of the pilot of 6 million tokens, and that of the published decoders of 3.4M parameters."""


@dataclass(frozen=True)
class SimulatedRace:
    """A race with known advantages, in nats, and known shifts of the best rate, in factors of 2."""

    number: int
    noise: Noise
    entrants: tuple[str, ...] = ENTRANTS
    seeds: int = 12
    advantage: Mapping[str, float] = field(default_factory=dict)
    shift: Mapping[str, int] = field(default_factory=dict)
    token_ratio: Mapping[str, float] = field(default_factory=dict)

    def write_logs(self, race: Race, folder: Path) -> bool:
        """Instead of training: the logs of every pack."""
        settings = {
            "recipe": {name: value for name, value in race.recipe.to_dict().items() if name not in ("rate", "seed")},
            "mechanisms": list(entrant_configs(race.mechanisms, race.recipe.config)),
            "rates": list(race.rates),
            "chosen": {name: list(rates) for name, rates in race.chosen.items()},
            "seeds": race.seeds,
            "first_seed": race.first_seed,
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / race_files.RACE_FILE).write_text(json.dumps(settings))
        for pack in race.packs():
            pack_folder = race_files.pack_folder(folder, pack.entrant, pack.recipe.rate)
            if not pack_folder.exists():
                pack_folder.mkdir(parents=True)
                lines = self.log_lines(pack, race.evaluation_steps())
                (pack_folder / race_files.LOG_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return True

    def log_lines(self, pack: Pack, steps: list[int]) -> list[dict[str, object]]:
        """The log of a pack."""
        excess = {seed: self.excess_loss(pack.entrant, pack.recipe.rate, seed) for seed in pack.seeds}
        return [
            {
                "entrant": pack.entrant,
                "rate": pack.recipe.rate,
                "seed": seed,
                "step": step,
                "tokens": step * TOKENS_PER_STEP,
                "flops": step,
                "train loss": None,
                "loss": self.loss(pack.entrant, step / STEPS, excess[seed]),
                "diverged": None,
            }
            for step in steps
            for seed in pack.seeds
        ]

    def loss(self, entrant: str, share: float, excess: float) -> float:
        """The loss after a share of the tokens. An entrant with a token ratio of .8 is there after .8 of the tokens."""
        if share == 0:
            return FIRST_LOSS
        return LIMIT_LOSS + FALL * (share / self.token_ratio.get(entrant, 1.0)) ** -EXPONENT + excess

    def excess_loss(self, entrant: str, rate: float, seed: int) -> float:
        """What a run loses by its rate, minus its advantage, plus noise that depends on the run alone."""
        octaves = math.log2(rate / MIDDLE_RATE) - self.best_octave() - self.shift.get(entrant, 0)
        shared = self.noise.shared * draw(self.number, "all runs", 0.0, seed)
        single = self.noise.single * draw(self.number, entrant, rate, seed)
        return rate_curve(octaves) - self.advantage.get(entrant, 0.0) + shared + single

    def best_octave(self) -> float:
        """The best rate of the race lies anywhere between two rates of the grid, in factors of 2 from the middle one."""
        return draw(self.number, "best rate", 0.0, 0) % 2 - 1

    def compare(self, folder: Path) -> Comparison:
        """The comparison by the package, with rates chosen from curves as in a real race."""
        race = Race(RECIPE, self.entrants, self.seeds)
        main_race = RateCurves().choose_rates(race, folder, self.write_logs)
        assert main_race is not None
        self.write_logs(main_race, folder)
        return compare_race(folder)

    def curves(self, entrant: str) -> Curves:
        """The curves of an entrant at the middle rate, without files."""
        shares, seeds = [index / EVALUATIONS for index in range(EVALUATIONS + 1)], tuple(range(self.seeds))
        losses = [
            [self.loss(entrant, share, self.excess_loss(entrant, MIDDLE_RATE, seed)) for share in shares]
            for seed in seeds
        ]
        loss, tokens = torch.tensor(losses, dtype=torch.float64), tuple(round(1e6 * share) for share in shares)
        return Curves(entrant, MIDDLE_RATE, seeds, tokens, tokens, tokens, loss, loss, (None,) * self.seeds)


def rate_curve(octaves: float) -> float:
    """The loss at a rate above that at the best one: steeper towards high rates, as in the pilot."""
    return 0.012 * -octaves + 0.025 * octaves**2 if octaves < 0 else 0.09 * octaves**2


def draw(number: int, name: str, rate: float, seed: int) -> float:
    """A standard normal number that depends on its arguments alone."""
    key = [number, zlib.crc32(name.encode()), zlib.crc32(repr(rate).encode()), seed]
    return float(np.random.default_rng(key).standard_normal())
