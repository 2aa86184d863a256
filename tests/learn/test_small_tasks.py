"""Two moons and digits in a race: both are learned, packed seeds equal single ones, and all entrants see the same data."""

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


def with_vocabulary(recipe: Recipe, task: Task) -> Recipe:
    return replace(recipe, config=recipe.config.with_changes(vocabulary=task.vocabulary))


@pytest.mark.parametrize(
    ("task", "training_recipe", "seed", "steps", "max_loss"),
    [
        (TwoMoonsTask(grid_side=8), two_moons().with_changes(rate=1e-2), 1, 80, 0.6),
        (DigitsTask(), digits().with_changes(depth=1), 0, 60, 2.2),
    ],
    ids=["two_moons", "digits"],
)
def test_a_few_steps_beat_chance(task: Task, training_recipe: Recipe, seed: int, steps: int, max_loss: float) -> None:
    training_recipe = with_vocabulary(training_recipe.with_changes(seed=seed), task)
    model = initial_model(training_recipe.config, seed)
    init_embedding(model, task)
    learner = make_single_learner(model, seed, training_recipe, task)
    for step in range(steps):
        batch = task.batch(step, training_recipe)
        learner.step(training_recipe, step, batch, torch.tensor([float(task.n_targets(batch))]))
    chance = math.log(2 if isinstance(task, TwoMoonsTask) else 10)
    assert float(learner.evaluate(task.held_out_batches(training_recipe), task.n_targets)) < max_loss < chance


@pytest.mark.parametrize(("task", "training_recipe"), [(TwoMoonsTask(), two_moons()), (DigitsTask(), digits())])
def test_packed_seeds_have_the_losses_of_single_seeds(task: Task, training_recipe: Recipe) -> None:
    training_recipe = with_vocabulary(training_recipe.with_changes(batch=4), task)
    pack = Race(training_recipe, ("metric_map",), seeds=2).packs()[-1]
    models = [initial_model(pack.recipe.config, seed) for seed in pack.seeds]
    for model in models:
        init_embedding(model, task)
    single_learners = [
        make_single_learner(initial_model(pack.recipe.config, seed), seed, pack.recipe, task) for seed in pack.seeds
    ]
    for learner in single_learners:
        init_embedding(learner.model, task)
    packed_learner = make_packed_learner(models, pack.seeds, pack.recipe, task)
    for step in range(3):
        batch, counts = pack.batch(task, pack.seeds, step)
        packed_losses = packed_learner.step(pack.recipe, step, batch, counts)
        for index, learner in enumerate(single_learners):
            own_batch, own_count = pack.batch(task, learner.seeds, step)
            assert torch.allclose(
                learner.step(pack.recipe, step, own_batch, own_count), packed_losses[index], rtol=1e-4
            )


@torch.no_grad()
def initial_loss(task: Task, training_recipe: Recipe, seed: int) -> float:
    """The held-out loss before the first step."""
    model = initial_model(with_vocabulary(training_recipe, task).config, seed)
    init_embedding(model, task)
    batches = list(task.held_out_batches(training_recipe))
    return sum(float(task.loss(model, batch)) for batch in batches) / sum(map(task.n_targets, batches))


def test_a_race_starts_at_the_initial_loss_and_its_models_load(tmp_path: Path) -> None:
    task, training_recipe = (
        TwoMoonsTask(grid_side=4),
        two_moons().with_changes(steps=1, evaluate_every=1, batch=128, width=16),
    )
    run_race(Race(training_recipe, ("tied",), seeds=2), task, tmp_path / "out", "cpu")
    first_lines = [line for line in race_files.read_all_logs(tmp_path / "out") if line["step"] == 0]
    logged_losses = [line["loss"] for line in first_lines if line["entrant"] == "untied"]
    assert logged_losses == pytest.approx([initial_loss(task, training_recipe, seed) for seed in (0, 1)])
    assert load_race_model(tmp_path / "out", "tied", seed=1).stack.embed.weight.shape == (task.vocabulary, 16)


def test_train_needs_no_tokenizer(tmp_path: Path) -> None:
    training_recipe = two_moons().with_changes(steps=2, evaluate_every=2, batch=64)
    figures = train(training_recipe, TwoMoonsTask(), tmp_path / "out", device="cpu")
    assert figures["step"] == 2
    assert not (tmp_path / "out" / "tokenizer.json").exists()
