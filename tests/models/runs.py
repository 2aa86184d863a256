"""Shared by the tests of training: a periodic text, sentence pairs, a small recipe, and comparisons of runs."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from rheoscope.models.config import Config
from rheoscope.models.recipes import Recipe
from rheoscope.models.sentence_pairs import PairCorpus, Pairs
from rheoscope.models.task import MaskedTokenTask, NextTokenTask, TranslationTask
from rheoscope.models.token_corpus import Corpus
from rheoscope.models.train import read_log, train
from rheoscope.models.vocabulary import END

VOCABULARY = 11


class Killed(Exception):
    """Raised to end a run from outside."""


def small(**changes: Any) -> Recipe:
    """A decoder with millisecond steps that uses everything a run can have: dropout, accumulation, warm-up."""
    config = Config(vocabulary=VOCABULARY, width=16, depth=2, heads=2, hidden=24, context=16, dropout=0.2)
    recipe = Recipe(config, steps=9, batch=8, context=12, rate=1e-2, warmup=3, accumulate=2, evaluate_every=2)
    return recipe.with_changes(**changes)


JUMPS = 0.2
_OTHER = JUMPS / VOCABULARY
_NEXT = 1 - JUMPS + _OTHER
ENTROPY = -_NEXT * math.log(_NEXT) - (VOCABULARY - 1) * _OTHER * math.log(_OTHER)
"""The entropy of a token given the token before it, in nats."""


def tokens(count: int, seed: int = 0) -> np.ndarray:
    """0 1 2 …, repeated, with occasional jumps to a random token."""
    generator = np.random.default_rng(seed)
    steps = np.where(generator.random(count) < JUMPS, generator.integers(0, VOCABULARY, count), 1)
    return (np.cumsum(steps) % VOCABULARY).astype("<u2")


def prose(train: int = 400, held_out: int = 100) -> NextTokenTask:
    return NextTokenTask(Corpus(tokens(train), tokens(held_out, 1), VOCABULARY, 2 * held_out, Path("tokenizer.json")))


def masked(train: int = 400, held_out: int = 100) -> MaskedTokenTask:
    """The same text with a mask token after its own tokens."""
    parts = tokens(train), tokens(held_out, 1)
    return MaskedTokenTask(Corpus(*parts, VOCABULARY + 1, 2 * held_out, Path("tokenizer.json")), VOCABULARY)


def encoder(**changes: Any) -> Recipe:
    """A small encoder."""
    return small(**({"form": "encoder"} | changes))


def pairs(count: int, longest: int = 5, vocabulary: int = VOCABULARY, seed: int = 0) -> Pairs:
    """Sentences that are their own translation."""
    generator = np.random.default_rng(seed)
    sides = [generator.integers(END + 1, vocabulary, generator.integers(1, longest + 1)) for _ in range(count)]
    rows = [side for side in sides for _ in range(2)]
    return Pairs(np.concatenate(rows).astype("<u2"), np.cumsum([len(row) for row in rows]))


def translation(count: int = 40, **more: Any) -> TranslationTask:
    return TranslationTask(
        PairCorpus(pairs(count, **more), pairs(8, seed=1, **more), VOCABULARY, Path("tokenizer.json"))
    )


def translator(**changes: Any) -> Recipe:
    """A small encoder-decoder with label smoothing, as in 2017."""
    recipe = small(label_smoothing=0.1, accumulate=1, batch=6)
    return recipe.with_changes(**({"form": "encoder-decoder", "position": "sinusoidal"} | changes))


def run(out: Path, recipe: Recipe, task: Any = None, stop_at: int | None = None, **more: Any) -> Any:
    """Train on a CPU. With `stop_at`, the run is killed after that step."""

    def stop_after(metrics: dict[str, float]) -> None:
        if metrics["step"] == stop_at:
            raise Killed

    try:
        return train(recipe, task or prose(), out, device="cpu", on_progress=stop_after, **more)
    except Killed:
        return None


def run_files(out: Path) -> dict[str, bytes]:
    """Every byte that a run leaves, except its speed."""
    files = [out / "model.safetensors", out / "figures.json", *sorted((out / "last").iterdir())]
    log = [{name: value for name, value in line.items() if name != "tokens per second"} for line in read_log(out)]
    return {str(file.relative_to(out)): file.read_bytes() for file in files} | {"log": json.dumps(log).encode()}


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "last" / "model.safetensors")


def weight_gap(out: Path, other: Path) -> float:
    """The largest difference between the last weights of two runs."""
    ours, theirs = weights(out), weights(other)
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)
