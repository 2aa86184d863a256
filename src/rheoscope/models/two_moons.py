"""Two moons as a task: points of the plane are tokens, a few of them show their moon, the moon of the others is to be said."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from rheoscope.models.recipes import Recipe
from rheoscope.models.task import HELD_OUT, Batch, Predicted, check_form
from rheoscope.models.token_corpus import IGNORED, seeded
from rheoscope.shapes import RheoscopeError

MOONS, STATES = 2, 3
"""Answers are the first ids; a point shows the first moon, the second, or none."""
REACH = 1.9
"""No point is farther from the middle on an axis: those that noise carries there stand at the edge."""
WAVES = (1, 2, 4)
"""Half waves from one edge of the plane to the other."""
SETS = 256
"""Held-out sets of points."""


@dataclass(frozen=True)
class TwoMoons(Predicted):
    """Which of two moons a point lies on, from a few others that show theirs: nearness along a curved cloud is all there is to go by.

    **Answers** whether a way to attend learns to compare tokens by where they are. Every set is turned by an angle of its own,
    which swaps the moons too: no place of the plane says anything by itself.

    **Formula** n points, half on (cos t, sin t) − c, half on (1 − cos t, ½ − sin t) − c with c = (½, ¼), t uniform in [0, π],
    each moved by N(0, noise²), all turned by one angle. The plane is cut into side² cells; the token of a point is
    2 + 3 · cell + (its moon, or 2 where that is hidden); `shown` points of each moon, drawn at random, show it. The loss is over
    the others: ids 0 and 1 are the answers. `known` is where the cells lie: at the start the embedding is a linear map of it.

    **Laws** a batch is a function of (seed, step); as many points of each moon; a model without positions is equivariant under
    the order of points; chance is log 2.

    **Source** after the two moons of arXiv:2412.18288, whose protocol is known from its abstract alone: the form is ours.

    **Siblings** `Digits` is the other small task of that paper.

    >>> from rheoscope.models.recipes import two_moons
    >>> x, y = TwoMoons().batch(0, two_moons())
    >>> x.shape == y.shape, TwoMoons().vocabulary, sorted(y.unique().tolist())
    (True, 434, [-100, 0, 1])
    """

    side: int = 12
    shown: int = 4
    noise: float = 0.1

    @property
    def vocabulary(self) -> int:
        return MOONS + STATES * self.side**2

    @property
    def ignored(self) -> int:
        return IGNORED

    def check(self, recipe: Recipe) -> None:
        check_form(recipe, "encoder", "points are")
        least = 2 * self.shown + 2
        if recipe.context % 2 or recipe.context < least:
            raise RheoscopeError(
                f"two moons take an even number of points, {least} or more, got context={recipe.context}; type --set context=32"
            )

    def batch(self, step: int, recipe: Recipe) -> Batch:
        return self.drawn(recipe.batch, recipe.context, seeded(recipe.seed, step))

    def held_out(self, recipe: Recipe) -> Iterator[Batch]:
        x, y = self.drawn(SETS, recipe.context, seeded(HELD_OUT, recipe.context))
        rows = recipe.batch // recipe.accumulate
        return zip(x.split(rows), y.split(rows), strict=True)

    def drawn(self, sets: int, points: int, draw: torch.Generator) -> Batch:
        """So many sets of points as tokens, and the moons of those that do not show it."""
        moon = torch.rand(sets, points, generator=draw).argsort(-1) % 2
        cell = self.cells(turned(on_moons(moon, self.noise, draw), draw))
        hidden = rank_within(moon, draw) >= self.shown
        state = torch.where(hidden, MOONS, moon)
        return MOONS + STATES * cell + state, torch.where(hidden, moon, IGNORED)

    def cells(self, at: Float[Tensor, "s n 2"]) -> Int[Tensor, "s n"]:
        """The number of the cell in which a point lies."""
        column, row = ((at + REACH) / (2 * REACH) * self.side).long().clamp(0, self.side - 1).unbind(-1)
        return row * self.side + column

    def known(self) -> Float[Tensor, "v f"]:
        """Of every point where it is, as waves along both axes, and the moon that it shows; nothing of the answers."""
        number = torch.arange(STATES * self.side**2)
        cell, state = number // STATES, number % STATES
        at = torch.stack([cell % self.side, cell // self.side], -1) / self.side
        waves = [wave(math.pi * count * at) for count in WAVES for wave in (torch.sin, torch.cos)]
        shows = torch.tensor([1.0, -1.0, 0.0])[state]
        return functional.pad(torch.cat([*waves, shows[:, None]], -1), (0, 0, MOONS, 0))


def on_moons(moon: Int[Tensor, "s n"], noise: float, draw: torch.Generator) -> Float[Tensor, "s n 2"]:
    """A point near each of these moons, around 0."""
    t = math.pi * torch.rand(moon.shape, generator=draw)
    first, second = (t.cos(), t.sin()), (1 - t.cos(), 0.5 - t.sin())
    at = torch.stack([torch.where(moon == 0, a, b) for a, b in zip(first, second, strict=True)], -1)
    return at - torch.tensor([0.5, 0.25]) + noise * torch.randn(at.shape, generator=draw)


def turned(at: Float[Tensor, "s n 2"], draw: torch.Generator) -> Float[Tensor, "s n 2"]:
    """Every set by an angle of its own."""
    angle = 2 * math.pi * torch.rand(len(at), generator=draw)
    c, s = angle.cos(), angle.sin()
    return at @ torch.stack([torch.stack([c, s], -1), torch.stack([-s, c], -1)], -2)


def rank_within(moon: Int[Tensor, "s n"], draw: torch.Generator) -> Int[Tensor, "s n"]:
    """The place of a point among those of its moon, in a random order, from 0.

    >>> rank_within(torch.tensor([[0, 1, 1, 0]]), torch.Generator().manual_seed(0)).sort().values.tolist()
    [[0, 0, 1, 1]]
    """
    order = (moon + torch.rand(moon.shape, generator=draw)).argsort(-1)
    return order.argsort(-1) - moon * (moon == 0).sum(-1, keepdim=True)
