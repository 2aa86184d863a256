"""The plan of a race: entrants, seeds, evaluation steps and batches, and the packs of seeds that train together."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.learn import race_files
from rheoscope.learn.entrants import (
    canonical_name,
    entrant_configs,
    flops_per_token,
    n_parameters,
    parse_penalties,
    parse_training_settings,
)
from rheoscope.learn.own_entrants import FINGERPRINTS
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.models.config import Config
from rheoscope.models.recipes import Recipe
from rheoscope.models.task import Batch, Task
from rheoscope.shapes import RheoscopeError

SeedBatch = tuple[Batch, Float[Tensor, " seeds"]]


@dataclass(frozen=True)
class Race:
    """A race: a recipe, entrants by name, the number of seeds, the rates, and the number of held-out tokens to evaluate on.

    Every entrant runs at every rate, or at the rates in `chosen` that a screen (`rate_screen.py`) or rate curves
    (`rate_curves.py`) picked for it with other seeds. In that case the seeds start at `first_seed`, after those seeds.
    An entrant is judged at the first of its chosen rates.

    >>> from rheoscope.models.recipes import tiny
    >>> [f"{pack.entrant}@{pack.recipe.rate:g}" for pack in Race(tiny(), ("metric",), 2, (1e-3, 3e-3)).packs()]
    ['untied@0.001', 'untied@0.003', 'metric@0.001', 'metric@0.003']
    """

    recipe: Recipe
    mechanisms: tuple[str, ...]
    seeds: int = 12
    rates: tuple[float, ...] = ()
    held_out: int = 100_000
    first_seed: int = 0
    chosen: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise RheoscopeError(Message("seeds must be at least 1, got {seeds}", seeds=self.seeds), use(seeds=12))
        object.__setattr__(self, "mechanisms", tuple(dict.fromkeys(map(canonical_name, self.mechanisms))))
        object.__setattr__(self, "rates", tuple(self.rates) or (self.recipe.rate,))

    def packs(self) -> list["Pack"]:
        """Every entrant at every rate, the baseline first."""
        return [
            Pack(entrant, self.entrant_recipe(entrant, config, rate), self.seed_numbers())
            for entrant, config in entrant_configs(self.mechanisms, self.recipe.config, self.recipe.context).items()
            for rate in race_files.entrant_rates(entrant, self.rates, self.chosen)
        ]

    def seed_numbers(self) -> tuple[int, ...]:
        """The numbers of the seeds."""
        return tuple(range(self.first_seed, self.first_seed + self.seeds))

    def entrant_recipe(self, entrant: str, config: Config, rate: float) -> Recipe:
        """The recipe of an entrant: the common one with its own model, rate, penalties and training settings."""
        penalties = self.recipe.penalty | parse_penalties(entrant)
        own_recipe = replace(self.recipe, config=config, rate=rate, penalty=penalties)
        return own_recipe.with_changes(**parse_training_settings(entrant))

    def evaluation_steps(self) -> list[int]:
        """The steps at which all entrants are evaluated: the start, every `evaluate_every` steps, and the end."""
        regular_steps = range(0, self.recipe.steps, self.recipe.evaluate_every)
        return [*regular_steps, self.recipe.steps]

    def to_json(self, task: Task) -> dict[str, Any]:
        """The settings as JSON stores them, with a fingerprint of the data."""
        batches = (*task.batch(0, self.recipe), *next(iter(task.held_out_batches(self.recipe))))
        data_hash = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in batches)).hexdigest()[:16]
        configs = entrant_configs(self.mechanisms, self.recipe.config, self.recipe.context)
        return {
            "recipe": {name: value for name, value in self.recipe.to_dict().items() if name not in ("rate", "seed")},
            "seeds": self.seeds,
            "first_seed": self.first_seed,
            "held_out": self.held_out,
            "data": data_hash,
            "mechanisms": list(configs),
            "parameters": {name: n_parameters(config) for name, config in configs.items()},
            "files": {
                config.attention: FINGERPRINTS[config.attention]
                for config in configs.values()
                if config.attention in FINGERPRINTS
            },
            "rates": list(self.rates),
            "chosen": {name: list(rates) for name, rates in self.chosen.items()},
        }


@dataclass(frozen=True)
class Pack:
    """All seeds of one entrant at one rate."""

    entrant: str
    recipe: Recipe
    seeds: tuple[int, ...]

    def batch(self, task: Task, seeds: Sequence[int], step: int) -> SeedBatch:
        """The batch of these seeds at a step, the rows of the first seed first.

        It is the same for every entrant and rate.
        """
        batches = [task.batch(step, replace(self.recipe, seed=seed)) for seed in seeds]
        counts = torch.tensor([float(task.n_targets(batch)) for batch in batches])
        return task.concat_batches(batches), counts

    def is_finished(self, race_folder: Path) -> bool:
        """Whether the pack has reached its last step."""
        lines = race_files.read_log(race_files.pack_folder(race_folder, self.entrant, self.recipe.rate))
        return race_files.last_step(lines) == self.recipe.steps

    @property
    def tokens_per_step(self) -> int:
        """The tokens that one seed reads per step."""
        return self.recipe.batch * self.recipe.context

    @property
    def total_tokens(self) -> int:
        """The tokens that all seeds read in all steps."""
        return self.recipe.steps * self.tokens_per_step * len(self.seeds)

    @property
    def name(self) -> Message:
        """The name of the pack in progress displays."""
        return Message("{entrant} at rate {rate:g}", entrant=self.entrant, rate=self.recipe.rate)

    @cached_property
    def flops_per_step(self) -> int:
        """The FLOPs of one seed per step."""
        return self.tokens_per_step * flops_per_token(self.recipe.config, self.recipe.context)
