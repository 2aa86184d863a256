"""The two-moons task: balanced moons, hidden labels, informative neighbours, and no dependence on the order of points."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rheoscope.learn.initial_weights import initial_model
from rheoscope.models.input_encoders import init_embedding
from rheoscope.models.recipes import Recipe, tiny, two_moons
from rheoscope.models.token_corpus import IGNORE_INDEX, seeded_generator
from rheoscope.models.two_moons import HALF_WIDTH, N_MOONS, N_STATES, TwoMoonsTask, rotate_sets, sample_on_moons
from rheoscope.shapes import RheoscopeError

TASK = TwoMoonsTask()


def recipe(task: TwoMoonsTask = TASK, **more: Any) -> Recipe:
    changed = two_moons().with_changes(**more)
    return replace(changed, config=changed.config.with_changes(vocabulary=task.vocabulary))


def test_a_batch_is_a_function_of_seed_and_step() -> None:
    first, repeated, later, other = (
        TASK.batch(step, recipe(seed=seed)) for step, seed in ((3, 1), (3, 1), (4, 1), (3, 2))
    )
    assert all(torch.equal(a, b) for a, b in zip(first, repeated, strict=True))
    assert not torch.equal(first[0], later[0])
    assert not torch.equal(first[0], other[0])
    held_out, held_out_again = (list(TASK.held_out_batches(recipe(seed=seed))) for seed in (0, 5))
    assert all(
        torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(held_out, held_out_again, strict=True)
    )


def test_both_moons_have_equally_many_points_and_labels() -> None:
    x, y = TASK.sample_sets(20, 24, seeded_generator(0))
    state = (x - N_MOONS) % N_STATES
    for moon in range(2):
        assert ((state == moon).sum(-1) == TASK.labelled_per_moon).all()
        assert ((y == moon).sum(-1) == 12 - TASK.labelled_per_moon).all()
    assert torch.equal(y == IGNORE_INDEX, state < 2)  # labelled points are not predicted
    assert x.max() < TASK.vocabulary


def test_points_lie_on_the_moons_and_rotation_preserves_distances() -> None:
    moon = torch.tensor([[0, 1] * 50])
    points = sample_on_moons(moon, 0.0, seeded_generator(1)) + torch.tensor([0.5, 0.25])
    centre = torch.stack([moon.float(), 0.5 * moon], -1)  # centres of the two circles
    assert torch.allclose((points - centre).norm(dim=-1), torch.ones(1, 100), atol=1e-5)
    assert ((points - centre)[..., 1] * (1 - 2 * moon) >= -1e-6).all()  # one moon is above, one below
    distances, rotated_distances = (
        (x[:, :, None] - x[:, None]).norm(dim=-1) for x in (points, rotate_sets(points, seeded_generator(2)))
    )
    assert torch.allclose(distances, rotated_distances, atol=1e-5)
    assert (rotate_sets(sample_on_moons(moon, 0.0, seeded_generator(1)), seeded_generator(3)).abs() < HALF_WIDTH).all()


def nearest_label(x: Tensor, side: int) -> Tensor:
    """The moon of the nearest labelled point for every point, by the centres of their cells."""
    labels = torch.empty_like(x)
    for row, out in zip(x.tolist(), labels, strict=True):
        cell = [(token - N_MOONS) // N_STATES for token in row]
        cell_points = [(index % side, index // side) for index in cell]
        labelled = [i for i, token in enumerate(row) if (token - N_MOONS) % N_STATES < 2]
        for i, point in enumerate(cell_points):
            best = min(labelled, key=lambda j: math.dist(point, cell_points[j]))
            out[i] = (row[best] - N_MOONS) % N_STATES
    return labels


def test_neighbours_predict_the_moon_and_the_cell_alone_does_not() -> None:
    x, y = TASK.sample_sets(100, 24, seeded_generator(4))
    is_hidden = y != IGNORE_INDEX
    assert (nearest_label(x, TASK.grid_side) == y)[is_hidden].float().mean() > 0.8
    cells = (x - N_MOONS) // N_STATES
    twin_x, twin_y = TASK.sample_sets(100, 24, seeded_generator(5))
    moon_by_cell = {
        int(c): int(m) for c, m in zip(((twin_x - N_MOONS) // N_STATES)[twin_y >= 0], twin_y[twin_y >= 0], strict=True)
    }
    is_correct = [
        moon_by_cell[int(c)] == int(m)
        for c, m in zip(cells[is_hidden], y[is_hidden], strict=True)
        if int(c) in moon_by_cell
    ]
    assert abs(sum(is_correct) / len(is_correct) - 0.5) < 0.1


@torch.no_grad()
def test_a_model_is_equivariant_under_permutations_of_the_points() -> None:
    model = initial_model(recipe().config, 0)
    init_embedding(model, TASK)
    x, _ = TASK.sample_sets(2, 24, seeded_generator(6))
    order = torch.randperm(24, generator=seeded_generator(7))
    assert torch.allclose(model(x[:, order]), model(x)[:, order], atol=1e-6)


def test_recipes_with_another_form_or_an_odd_context_are_refused() -> None:
    with pytest.raises(RheoscopeError, match="form=encoder"):
        TASK.check(tiny())
    with pytest.raises(RheoscopeError, match="an even number of points, at least 10, got context=9"):
        TASK.check(two_moons().with_changes(context=9))
