"""What the tests of the race share: a task of drawn letters, a tiny recipe, a small corpus."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from rheoscope.models.config import Config
from rheoscope.models.data import IGNORED, seeded
from rheoscope.models.recipes import Recipe
from rheoscope.models.task import Batch, nats

LETTERS, LENGTH = 11, 8


def config(**more: Any) -> Config:
    return Config(
        **{"vocabulary": LETTERS, "width": 16, "depth": 1, "heads": 2, "context": LENGTH, "hidden": 12} | more
    )


def recipe(**more: Any) -> Recipe:
    usual = {"steps": 6, "batch": 4, "context": LENGTH, "rate": 1e-2, "warmup": 2, "evaluate_every": 3}
    return Recipe(config(), **usual).but(**more)


@dataclass(frozen=True)
class Letters:
    """A task without files: the sum of two letters ago and a letter drawn anew."""

    form: str = "decoder"
    vocabulary = LETTERS
    ignored = IGNORED

    def check(self, recipe: Recipe) -> None:
        assert recipe.config.form == self.form

    def batch(self, step: int, recipe: Recipe) -> Batch:
        return self._rows(recipe.batch, seeded(recipe.seed, step))

    def held_out(self, recipe: Recipe) -> Iterator[Batch]:
        return iter([self._rows(16, seeded(-1, at)) for at in range(2)])

    def _rows(self, rows: int, draw: torch.Generator) -> Batch:
        x = torch.randint(LETTERS, (rows, LENGTH + 1), generator=draw)
        for at in range(2, LENGTH + 1):
            x[:, at] = (x[:, at - 2] + x[:, at] % 2) % LETTERS
        return x[:, :-1].contiguous(), x[:, 1:].contiguous()

    def loss(self, model: torch.nn.Module, batch: Batch, smoothing: float = 0.0) -> torch.Tensor:
        return nats(model(batch[0]), batch[1], smoothing, self.ignored)

    def count(self, batch: Batch) -> int:
        return int(batch[1].numel())

    def figures(self, nats: float, tokens: int) -> dict[str, float]:
        return {"loss": nats / tokens}
