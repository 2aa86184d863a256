"""Two moons: as many points of each, hidden ones show nothing, their neighbours give them away, and no order of points matters."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rheoscope.learn.initial_weights import drawn
from rheoscope.models.input_encoders import start_known
from rheoscope.models.recipes import Recipe, tiny, two_moons
from rheoscope.models.token_corpus import IGNORED, seeded
from rheoscope.models.two_moons import MOONS, REACH, STATES, TwoMoons, on_moons, turned
from rheoscope.shapes import RheoscopeError

TASK = TwoMoons()


def recipe(task: TwoMoons = TASK, **more: Any) -> Recipe:
    asked = two_moons().but(**more)
    return replace(asked, config=asked.config.but(vocabulary=task.vocabulary))


def test_a_batch_is_a_function_of_seed_and_step() -> None:
    first, again, later, other = (
        TASK.batch(step, recipe(seed=seed)) for step, seed in ((3, 1), (3, 1), (4, 1), (3, 2))
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], later[0])
    assert not torch.equal(first[0], other[0])
    held, same = (list(TASK.held_out(recipe(seed=seed))) for seed in (0, 5))
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(held, same, strict=True))


def test_half_of_the_points_are_of_each_moon_and_a_few_show_it() -> None:
    x, y = TASK.drawn(20, 24, seeded(0))
    state = (x - MOONS) % STATES
    for one in range(2):
        assert ((state == one).sum(-1) == TASK.shown).all()
        assert ((y == one).sum(-1) == 12 - TASK.shown).all()
    assert torch.equal(y == IGNORED, state < 2)  # who shows its moon is not asked for it
    assert x.max() < TASK.vocabulary


def test_points_lie_on_the_moons_and_turning_keeps_distances() -> None:
    moon = torch.tensor([[0, 1] * 50])
    at = on_moons(moon, 0.0, seeded(1)) + torch.tensor([0.5, 0.25])
    centre = torch.stack([moon.float(), 0.5 * moon], -1)  # of the two circles
    assert torch.allclose((at - centre).norm(dim=-1), torch.ones(1, 100), atol=1e-5)
    assert ((at - centre)[..., 1] * (1 - 2 * moon) >= -1e-6).all()  # one half above, one below
    apart, after = ((x[:, :, None] - x[:, None]).norm(dim=-1) for x in (at, turned(at, seeded(2))))
    assert torch.allclose(apart, after, atol=1e-5)
    assert (turned(on_moons(moon, 0.0, seeded(1)), seeded(3)).abs() < REACH).all()


def nearest(x: Tensor, side: int) -> Tensor:
    """For every point the moon of the nearest that shows it, by the middles of their cells, point by point."""
    said = torch.empty_like(x)
    for row, out in zip(x.tolist(), said, strict=True):
        cell = [(token - MOONS) // STATES for token in row]
        at = [(one % side, one // side) for one in cell]
        shown = [i for i, token in enumerate(row) if (token - MOONS) % STATES < 2]
        for i, here in enumerate(at):
            best = min(shown, key=lambda j: math.dist(here, at[j]))
            out[i] = (row[best] - MOONS) % STATES
    return said


def test_neighbours_give_a_point_away_and_its_place_alone_does_not() -> None:
    x, y = TASK.drawn(100, 24, seeded(4))
    hidden = y != IGNORED
    assert (nearest(x, TASK.side) == y)[hidden].float().mean() > 0.8
    cells = (x - MOONS) // STATES
    twin_x, twin_y = TASK.drawn(100, 24, seeded(5))
    seen = {int(c): int(m) for c, m in zip(((twin_x - MOONS) // STATES)[twin_y >= 0], twin_y[twin_y >= 0], strict=True)}
    by_place = [seen[int(c)] == int(m) for c, m in zip(cells[hidden], y[hidden], strict=True) if int(c) in seen]
    assert abs(sum(by_place) / len(by_place) - 0.5) < 0.1


@torch.no_grad()
def test_the_order_of_points_does_not_matter() -> None:
    model = drawn(recipe().config, 0)
    start_known(model, TASK)
    x, _ = TASK.drawn(2, 24, seeded(6))
    order = torch.randperm(24, generator=seeded(7))
    assert torch.allclose(model(x[:, order]), model(x)[:, order], atol=1e-6)


def test_what_it_cannot_serve_is_refused() -> None:
    with pytest.raises(RheoscopeError, match="form=encoder"):
        TASK.check(tiny())
    with pytest.raises(RheoscopeError, match="an even number of points, 10 or more, got context=9"):
        TASK.check(two_moons().but(context=9))
