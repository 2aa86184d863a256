"""Two moons and digits, raced: both are learned, packed seeds learn what each does alone, and the same data goes to every entrant."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rheoscope.learn import race_files
from rheoscope.learn.initial_weights import initial_model
from rheoscope.learn.learner import make_packed_learner, make_single_learner
from rheoscope.learn.race import run_race
from rheoscope.learn.race_models import load_race_model
from rheoscope.learn.race_plan import Race
from rheoscope.models.digits import DigitsTask
from rheoscope.models.input_encoders import init_embedding
from rheoscope.models.recipes import Recipe, digits, two_moons
from rheoscope.models.task import Task
from rheoscope.models.train import train
from rheoscope.models.two_moons import TwoMoonsTask

pytest.importorskip("sklearn")


def fitting(recipe: Recipe, task: Task) -> Recipe:
    return replace(recipe, config=recipe.config.with_changes(vocabulary=task.vocabulary))


@pytest.mark.parametrize(
    ("task", "asked", "seed", "steps", "least"),
    [(TwoMoonsTask(grid_side=8), two_moons(), 1, 120, 0.6), (DigitsTask(), digits().with_changes(depth=1), 0, 60, 2.2)],
    ids=["two_moons", "digits"],
)
def test_a_few_steps_beat_chance(task: Task, asked: Recipe, seed: int, steps: int, least: float) -> None:
    asked = fitting(asked.with_changes(seed=seed), task)
    model = initial_model(asked.config, seed)
    init_embedding(model, task)
    learner = make_single_learner(model, seed, asked, task)
    for step in range(steps):
        batch = task.batch(step, asked)
        learner.step(asked, step, batch, torch.tensor([float(task.n_targets(batch))]))
    chance = math.log(2 if isinstance(task, TwoMoonsTask) else 10)
    assert float(learner.evaluate(task.held_out_batches(asked), task.n_targets)) < least < chance


@pytest.mark.parametrize(("task", "asked"), [(TwoMoonsTask(), two_moons()), (DigitsTask(), digits())])
def test_packed_seeds_learn_what_each_does_alone(task: Task, asked: Recipe) -> None:
    asked = fitting(asked.with_changes(batch=4), task)
    pack = Race(asked, ("metric_map",), seeds=2).packs()[-1]
    models = [initial_model(pack.recipe.config, seed) for seed in pack.seeds]
    for model in models:
        init_embedding(model, task)
    alone = [
        make_single_learner(initial_model(pack.recipe.config, seed), seed, pack.recipe, task) for seed in pack.seeds
    ]
    for learner in alone:
        init_embedding(learner.model, task)
    together = make_packed_learner(models, pack.seeds, pack.recipe, task)
    for step in range(3):
        batch, counts = pack.batch(task, pack.seeds, step)
        packed = together.step(pack.recipe, step, batch, counts)
        for at, learner in enumerate(alone):
            own, count = pack.batch(task, learner.seeds, step)
            assert torch.allclose(learner.step(pack.recipe, step, own, count), packed[at], rtol=1e-4)


@torch.no_grad()
def losses(task: Task, asked: Recipe, seed: int) -> float:
    """Held out, before the first step."""
    model = initial_model(fitting(asked, task).config, seed)
    init_embedding(model, task)
    batches = list(task.held_out_batches(asked))
    return sum(float(task.loss(model, batch)) for batch in batches) / sum(map(task.n_targets, batches))


def test_raced_they_start_from_what_is_known_and_their_models_open(tmp_path: Path) -> None:
    task, asked = TwoMoonsTask(grid_side=4), two_moons().with_changes(steps=1, evaluate_every=1, batch=128, width=16)
    run_race(Race(asked, ("tied",), seeds=2), task, tmp_path / "out", "cpu")
    first = [line for line in race_files.read_all_logs(tmp_path / "out") if line["step"] == 0]
    own = [line["loss"] for line in first if line["entrant"] == "untied"]
    assert own == pytest.approx([losses(task, asked, seed) for seed in (0, 1)])
    assert load_race_model(tmp_path / "out", "tied", seed=1).stack.embed.weight.shape == (task.vocabulary, 16)


def test_trained_alone_too(tmp_path: Path) -> None:
    asked = two_moons().with_changes(steps=2, evaluate_every=2, batch=64)
    figures = train(asked, TwoMoonsTask(), tmp_path / "out", device="cpu")
    assert figures["step"] == 2
    assert not (tmp_path / "out" / "tokenizer.json").exists()
