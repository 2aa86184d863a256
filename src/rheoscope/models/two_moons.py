"""Two moons as a task: points of the plane are tokens, a few show their moon, and the others are predicted."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from rheoscope.messages.message import Message
from rheoscope.models.config import set_fields
from rheoscope.models.recipes import Recipe
from rheoscope.models.task import HELD_OUT_STEP, Batch, TokenPrediction, check_form
from rheoscope.models.token_corpus import IGNORE_INDEX, seeded_generator
from rheoscope.shapes import RheoscopeError

N_MOONS, N_STATES = 2, 3
"""The moons, which are the first ids, and the states of a point: first moon shown, second moon shown, hidden."""
HALF_WIDTH = 1.9
"""The largest coordinate. Points that noise moves further are placed at the edge."""
FREQUENCIES = (1, 2, 4)
"""Half waves from one edge of the plane to the other."""
N_HELD_OUT_SETS = 256
"""Held-out sets of points."""


@dataclass(frozen=True)
class TwoMoonsTask(TokenPrediction):
    """Which of two moons does a point lie on, given a few labelled points?

    **Question** Does a mechanism learn to compare tokens by their position? Only nearness along a curved cloud helps. Every set
    is rotated by a random angle, which can also swap the moons, so no region of the plane is informative by itself.

    **Formula** Half of n points lie on (cos t, sin t) − c, half on (1 − cos t, ½ − sin t) − c, with c = (½, ¼) and t uniform in
    [0, π]. Each is moved by N(0, noise²), and all are rotated by one angle. The plane is divided into grid_side² cells. The token of
    a point is 2 + 3 · cell + state, where the state is its moon, or 2 if hidden. `labelled_per_moon` random points of each moon show
    it. The loss covers the others, with targets 0 and 1. `token_features` are the locations of the cells, so the embedding starts
    as a linear map of them.

    **Laws** A batch is a function of (seed, step). Both moons have equally many points. A model without positions is equivariant
    under permutations of the points. The loss at chance is log 2.

    **Source** After the two moons of arXiv:2412.18288, whose abstract does not give the protocol, so the form is ours.

    **See also** `DigitsTask`, the other small task of that paper.

    >>> from rheoscope.models.recipes import two_moons
    >>> x, y = TwoMoonsTask().batch(0, two_moons())
    >>> x.shape == y.shape, TwoMoonsTask().vocabulary, sorted(y.unique().tolist())
    (True, 434, [-100, 0, 1])
    """

    grid_side: int = 12
    labelled_per_moon: int = 4
    noise: float = 0.1

    @property
    def vocabulary(self) -> int:
        return N_MOONS + N_STATES * self.grid_side**2

    @property
    def ignore_index(self) -> int:
        return IGNORE_INDEX

    def check(self, recipe: Recipe) -> None:
        check_form(recipe, "encoder", Message("a set of points"))
        min_points = 2 * self.labelled_per_moon + 2
        if recipe.context % 2 or recipe.context < min_points:
            raise RheoscopeError(
                Message(
                    "two moons need an even number of points, at least {minimum}, got context={context}",
                    minimum=min_points,
                    context=recipe.context,
                ),
                set_fields(context=32),
            )

    def batch(self, step: int, recipe: Recipe) -> Batch:
        return self.sample_sets(recipe.batch, recipe.context, seeded_generator(recipe.seed, step))

    def held_out_batches(self, recipe: Recipe) -> Iterator[Batch]:
        x, y = self.sample_sets(N_HELD_OUT_SETS, recipe.context, seeded_generator(HELD_OUT_STEP, recipe.context))
        batch_size = recipe.batch // recipe.accumulate
        return zip(x.split(batch_size), y.split(batch_size), strict=True)

    def sample_sets(self, n_sets: int, n_points: int, generator: torch.Generator) -> Batch:
        """`n_sets` sets of points as tokens, with the hidden moons as targets."""
        moon = torch.rand(n_sets, n_points, generator=generator).argsort(-1) % 2
        cell = self.cell_index(rotate_sets(sample_on_moons(moon, self.noise, generator), generator))
        is_hidden = random_rank(moon, generator) >= self.labelled_per_moon
        state = torch.where(is_hidden, N_MOONS, moon)
        return N_MOONS + N_STATES * cell + state, torch.where(is_hidden, moon, IGNORE_INDEX)

    def cell_index(self, points: Float[Tensor, "s n 2"]) -> Int[Tensor, "s n"]:
        """The index of the cell that contains each point."""
        column, row = (
            ((points + HALF_WIDTH) / (2 * HALF_WIDTH) * self.grid_side).long().clamp(0, self.grid_side - 1).unbind(-1)
        )
        return row * self.grid_side + column

    def token_features(self) -> Float[Tensor, "v f"]:
        """The location of every point as waves along both axes, and the moon that it shows; zeros for the answers."""
        token = torch.arange(N_STATES * self.grid_side**2)
        cell, state = token // N_STATES, token % N_STATES
        coordinates = torch.stack([cell % self.grid_side, cell // self.grid_side], -1) / self.grid_side
        waves = [
            wave(math.pi * frequency * coordinates) for frequency in FREQUENCIES for wave in (torch.sin, torch.cos)
        ]
        shown_moon = torch.tensor([1.0, -1.0, 0.0])[state]
        return functional.pad(torch.cat([*waves, shown_moon[:, None]], -1), (0, 0, N_MOONS, 0))


def sample_on_moons(moon: Int[Tensor, "s n"], noise: float, generator: torch.Generator) -> Float[Tensor, "s n 2"]:
    """One noisy point on each of these moons, centred at 0."""
    t = math.pi * torch.rand(moon.shape, generator=generator)
    first_moon, second_moon = (t.cos(), t.sin()), (1 - t.cos(), 0.5 - t.sin())
    points = torch.stack([torch.where(moon == 0, a, b) for a, b in zip(first_moon, second_moon, strict=True)], -1)
    return points - torch.tensor([0.5, 0.25]) + noise * torch.randn(points.shape, generator=generator)


def rotate_sets(points: Float[Tensor, "s n 2"], generator: torch.Generator) -> Float[Tensor, "s n 2"]:
    """Rotate every set by a random angle."""
    angle = 2 * math.pi * torch.rand(len(points), generator=generator)
    c, s = angle.cos(), angle.sin()
    return points @ torch.stack([torch.stack([c, s], -1), torch.stack([-s, c], -1)], -2)


def random_rank(moon: Int[Tensor, "s n"], generator: torch.Generator) -> Int[Tensor, "s n"]:
    """The rank of each point within its moon in a random order, from 0.

    >>> random_rank(torch.tensor([[0, 1, 1, 0]]), torch.Generator().manual_seed(0)).sort().values.tolist()
    [[0, 0, 1, 1]]
    """
    order = (moon + torch.rand(moon.shape, generator=generator)).argsort(-1)
    return order.argsort(-1) - moon * (moon == 0).sum(-1, keepdim=True)
