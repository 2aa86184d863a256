"""What the tests of training share: a text that repeats itself, sentence pairs, a small recipe, and runs side by side."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from rheoscope.models.config import Config
from rheoscope.models.recipes import Recipe
from rheoscope.models.sentence_pairs import END, PairCorpus, Pairs
from rheoscope.models.task import MaskedTokenTask, NextTokenTask, TranslationTask
from rheoscope.models.token_corpus import Corpus
from rheoscope.models.train import read_log, train

VOCABULARY = 11


class Killed(Exception):
    """What ends a run from outside."""


def small(**changes: Any) -> Recipe:
    """A decoder that takes a step in milliseconds, with everything a run can have: dropout, accumulation, warm-up."""
    config = Config(vocabulary=VOCABULARY, width=16, depth=2, heads=2, hidden=24, context=16, dropout=0.2)
    recipe = Recipe(config, steps=9, batch=8, context=12, rate=1e-2, warmup=3, accumulate=2, evaluate_every=2)
    return recipe.with_changes(**changes)


JUMPS = 0.2
_OTHER = JUMPS / VOCABULARY
_NEXT = 1 - JUMPS + _OTHER
ENTROPY = -_NEXT * math.log(_NEXT) - (VOCABULARY - 1) * _OTHER * math.log(_OTHER)
"""Nats that remain of a token once the one before it is known."""


def tokens(count: int, seed: int = 0) -> np.ndarray:
    """0 1 2 …, round and round, with a jump to anywhere now and then."""
    draw = np.random.default_rng(seed)
    steps = np.where(draw.random(count) < JUMPS, draw.integers(0, VOCABULARY, count), 1)
    return (np.cumsum(steps) % VOCABULARY).astype("<u2")


def prose(train: int = 400, held_out: int = 100) -> NextTokenTask:
    return NextTokenTask(Corpus(tokens(train), tokens(held_out, 1), VOCABULARY, 2 * held_out, Path("tokenizer.json")))


def masked(train: int = 400, held_out: int = 100) -> MaskedTokenTask:
    """The same text with a token that hides others after its own tokens."""
    parts = tokens(train), tokens(held_out, 1)
    return MaskedTokenTask(Corpus(*parts, VOCABULARY + 1, 2 * held_out, Path("tokenizer.json")), VOCABULARY)


def encoder(**changes: Any) -> Recipe:
    """A small encoder."""
    return small(**({"form": "encoder"} | changes))


def pairs(count: int, longest: int = 5, vocabulary: int = VOCABULARY, seed: int = 0) -> Pairs:
    """Sentences that are their own translation."""
    draw = np.random.default_rng(seed)
    sides = [draw.integers(END + 1, vocabulary, draw.integers(1, longest + 1)) for _ in range(count)]
    rows = [side for side in sides for _ in range(2)]
    return Pairs(np.concatenate(rows).astype("<u2"), np.cumsum([len(row) for row in rows]))


def translation(count: int = 40, **more: Any) -> TranslationTask:
    return TranslationTask(
        PairCorpus(pairs(count, **more), pairs(8, seed=1, **more), VOCABULARY, Path("tokenizer.json"))
    )


def translator(**changes: Any) -> Recipe:
    """A small encoder-decoder; label smoothing as 2017."""
    recipe = small(label_smoothing=0.1, accumulate=1, batch=6)
    return recipe.with_changes(**({"form": "encoder-decoder", "position": "sinusoidal"} | changes))


def run(out: Path, recipe: Recipe, task: Any = None, stop_at: int | None = None, **more: Any) -> Any:
    """Train on a CPU; with `stop_at`, a run that is killed after that step."""

    def tell(figures: dict[str, float]) -> None:
        if figures["step"] == stop_at:
            raise Killed

    try:
        return train(recipe, task or prose(), out, device="cpu", on_progress=tell, **more)
    except Killed:
        return None


def kept(out: Path) -> dict[str, bytes]:
    """Every byte that a run leaves, but how fast it was."""
    files = [out / "model.safetensors", out / "figures.json", *sorted((out / "last").iterdir())]
    log = [{name: value for name, value in line.items() if name != "tokens per second"} for line in read_log(out)]
    return {str(file.relative_to(out)): file.read_bytes() for file in files} | {"log": json.dumps(log).encode()}


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "last" / "model.safetensors")


def apart(out: Path, other: Path) -> float:
    """The largest difference between the last weights of two runs."""
    ours, theirs = weights(out), weights(other)
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)
