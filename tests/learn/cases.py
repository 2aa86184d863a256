"""What the tests of the race share: a task of drawn letters, a tiny recipe, a small corpus."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rheoscope.models.config import Config
from rheoscope.models.recipes import Recipe
from rheoscope.models.sentence_pairs import PairCorpus, Pairs
from rheoscope.models.task import Batch, Task, TokenPrediction, TranslationTask
from rheoscope.models.token_corpus import IGNORE_INDEX, seeded_generator

LETTERS, LENGTH = 11, 8


def config(**more: Any) -> Config:
    return Config(
        **{"vocabulary": LETTERS, "width": 16, "depth": 1, "heads": 2, "context": LENGTH, "hidden": 12} | more
    )


def recipe(**more: Any) -> Recipe:
    usual = {"steps": 6, "batch": 4, "context": LENGTH, "rate": 1e-2, "warmup": 2, "evaluate_every": 3}
    return Recipe(config(), **usual).with_changes(**more)


@dataclass(frozen=True)
class Letters(TokenPrediction):
    """A task without files: the sum of two letters ago and a letter drawn anew."""

    form: str = "decoder"
    vocabulary = LETTERS
    ignore_index = IGNORE_INDEX

    def check(self, recipe: Recipe) -> None:
        assert recipe.config.form == self.form

    def batch(self, step: int, recipe: Recipe) -> Batch:
        return self._rows(recipe.batch, seeded_generator(recipe.seed, step))

    def held_out_batches(self, recipe: Recipe) -> Iterator[Batch]:
        return iter([self._rows(16, seeded_generator(-1, at)) for at in range(2)])

    def _rows(self, rows: int, draw: torch.Generator) -> Batch:
        x = torch.randint(LETTERS, (rows, LENGTH + 1), generator=draw)
        for at in range(2, LENGTH + 1):
            x[:, at] = (x[:, at - 2] + x[:, at] % 2) % LETTERS
        return x[:, :-1].contiguous(), x[:, 1:].contiguous()


def sentences() -> TranslationTask:
    """Sentences of one to six letters and, shorter by up to two, what they say: the same letters backwards."""
    draw = np.random.default_rng(0)
    sources = [draw.integers(3, LETTERS, draw.integers(1, LENGTH - 1)) for _ in range(60)]
    sides = [side for one in sources for side in (one, one[::-1][: max(1, len(one) - int(one[0]) % 3)])]
    pairs = Pairs(np.concatenate(sides), np.cumsum([len(side) for side in sides]))
    return TranslationTask(PairCorpus(pairs, pairs, LETTERS, Path("tokenizer.json")))


def task_for(by: Recipe) -> Task:
    """What a model of this form learns here."""
    return sentences() if by.config.form == "encoder-decoder" else Letters(by.config.form)
