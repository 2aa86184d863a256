"""Two moons: as many points of each, hidden ones show nothing, their neighbours give them away, and no order of points matters."""

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
    asked = two_moons().with_changes(**more)
    return replace(asked, config=asked.config.with_changes(vocabulary=task.vocabulary))


def test_a_batch_is_a_function_of_seed_and_step() -> None:
    first, again, later, other = (
        TASK.batch(step, recipe(seed=seed)) for step, seed in ((3, 1), (3, 1), (4, 1), (3, 2))
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], later[0])
    assert not torch.equal(first[0], other[0])
    held, same = (list(TASK.held_out_batches(recipe(seed=seed))) for seed in (0, 5))
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(held, same, strict=True))


def test_half_of_the_points_are_of_each_moon_and_a_few_show_it() -> None:
    x, y = TASK.sample_sets(20, 24, seeded_generator(0))
    state = (x - N_MOONS) % N_STATES
    for one in range(2):
        assert ((state == one).sum(-1) == TASK.labelled_per_moon).all()
        assert ((y == one).sum(-1) == 12 - TASK.labelled_per_moon).all()
    assert torch.equal(y == IGNORE_INDEX, state < 2)  # who shows its moon is not asked for it
    assert x.max() < TASK.vocabulary


def test_points_lie_on_the_moons_and_turning_keeps_distances() -> None:
    moon = torch.tensor([[0, 1] * 50])
    at = sample_on_moons(moon, 0.0, seeded_generator(1)) + torch.tensor([0.5, 0.25])
    centre = torch.stack([moon.float(), 0.5 * moon], -1)  # of the two circles
    assert torch.allclose((at - centre).norm(dim=-1), torch.ones(1, 100), atol=1e-5)
    assert ((at - centre)[..., 1] * (1 - 2 * moon) >= -1e-6).all()  # one half above, one below
    apart, after = ((x[:, :, None] - x[:, None]).norm(dim=-1) for x in (at, rotate_sets(at, seeded_generator(2))))
    assert torch.allclose(apart, after, atol=1e-5)
    assert (rotate_sets(sample_on_moons(moon, 0.0, seeded_generator(1)), seeded_generator(3)).abs() < HALF_WIDTH).all()


def nearest(x: Tensor, side: int) -> Tensor:
    """For every point the moon of the nearest that shows it, by the middles of their cells, point by point."""
    said = torch.empty_like(x)
    for row, out in zip(x.tolist(), said, strict=True):
        cell = [(token - N_MOONS) // N_STATES for token in row]
        at = [(one % side, one // side) for one in cell]
        shown = [i for i, token in enumerate(row) if (token - N_MOONS) % N_STATES < 2]
        for i, here in enumerate(at):
            best = min(shown, key=lambda j: math.dist(here, at[j]))
            out[i] = (row[best] - N_MOONS) % N_STATES
    return said


def test_neighbours_give_a_point_away_and_its_place_alone_does_not() -> None:
    x, y = TASK.sample_sets(100, 24, seeded_generator(4))
    hidden = y != IGNORE_INDEX
    assert (nearest(x, TASK.grid_side) == y)[hidden].float().mean() > 0.8
    cells = (x - N_MOONS) // N_STATES
    twin_x, twin_y = TASK.sample_sets(100, 24, seeded_generator(5))
    seen = {
        int(c): int(m) for c, m in zip(((twin_x - N_MOONS) // N_STATES)[twin_y >= 0], twin_y[twin_y >= 0], strict=True)
    }
    by_place = [seen[int(c)] == int(m) for c, m in zip(cells[hidden], y[hidden], strict=True) if int(c) in seen]
    assert abs(sum(by_place) / len(by_place) - 0.5) < 0.1


@torch.no_grad()
def test_the_order_of_points_does_not_matter() -> None:
    model = initial_model(recipe().config, 0)
    init_embedding(model, TASK)
    x, _ = TASK.sample_sets(2, 24, seeded_generator(6))
    order = torch.randperm(24, generator=seeded_generator(7))
    assert torch.allclose(model(x[:, order]), model(x)[:, order], atol=1e-6)


def test_what_it_cannot_serve_is_refused() -> None:
    with pytest.raises(RheoscopeError, match="form=encoder"):
        TASK.check(tiny())
    with pytest.raises(RheoscopeError, match="an even number of points, 10 or more, got context=9"):
        TASK.check(two_moons().with_changes(context=9))
