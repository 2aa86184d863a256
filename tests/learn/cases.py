"""Shared cases of the tests of learn/: a task of random letters, a tiny recipe and a small parallel corpus."""

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


def config(**changes: Any) -> Config:
    return Config(
        **{"vocabulary": LETTERS, "width": 16, "depth": 1, "heads": 2, "context": LENGTH, "hidden": 12} | changes
    )


def recipe(**changes: Any) -> Recipe:
    defaults = {"steps": 6, "batch": 4, "context": LENGTH, "rate": 1e-2, "warmup": 2, "evaluate_every": 3}
    return Recipe(config(), **defaults).with_changes(**changes)


@dataclass(frozen=True)
class Letters(TokenPrediction):
    """A task without files: each letter is the letter two positions before, plus a random 0 or 1."""

    form: str = "decoder"
    vocabulary = LETTERS
    ignore_index = IGNORE_INDEX

    def check(self, recipe: Recipe) -> None:
        assert recipe.config.form == self.form

    def batch(self, step: int, recipe: Recipe) -> Batch:
        return self._make_rows(recipe.batch, seeded_generator(recipe.seed, step))

    def held_out_batches(self, recipe: Recipe) -> Iterator[Batch]:
        return iter([self._make_rows(16, seeded_generator(-1, position)) for position in range(2)])

    def _make_rows(self, rows: int, generator: torch.Generator) -> Batch:
        x = torch.randint(LETTERS, (rows, LENGTH + 1), generator=generator)
        for position in range(2, LENGTH + 1):
            x[:, position] = (x[:, position - 2] + x[:, position] % 2) % LETTERS
        return x[:, :-1].contiguous(), x[:, 1:].contiguous()


def sentences() -> TranslationTask:
    """Sentences of one to six letters; the translation is the reversed sentence, up to two letters shorter."""
    generator = np.random.default_rng(0)
    sources = [generator.integers(3, LETTERS, generator.integers(1, LENGTH - 1)) for _ in range(60)]
    sides = [side for source in sources for side in (source, source[::-1][: max(1, len(source) - int(source[0]) % 3)])]
    pairs = Pairs(np.concatenate(sides), np.cumsum([len(side) for side in sides]))
    return TranslationTask(PairCorpus(pairs, pairs, LETTERS, Path("tokenizer.json")))


def task_for(recipe: Recipe) -> Task:
    """The task that fits a recipe's model."""
    return sentences() if recipe.config.form == "encoder-decoder" else Letters(recipe.config.form)
