"""Coordinates of a tensor in another order, as slices where the order allows it: a lookup copies number by number."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

MOST_RUNS = 8
"""Runs of consecutive coordinates that are joined. More runs are looked up."""
Choice = Callable[[Tensor], Tensor]


def coordinate_choice(index: Int[Tensor, "*c"], gain: Float[Tensor, "*c"] | None = None) -> Choice:
    """x ↦ x[..., index] * gain, a view of x if all rows of the index are consecutive and equally far apart.

    >>> halves_swapped = coordinate_choice(torch.tensor([2, 3, 0, 1]))
    >>> halves_swapped(torch.tensor([5, 6, 7, 8]))
    tensor([7, 8, 5, 6])
    """
    choose = _slices(index) or partial(_look_up, index)
    gains = [1.0] if gain is None else gain.unique().tolist()
    if gain is None or gains == [1.0]:
        return choose
    return partial(_scale, choose, gain) if len(gains) > 1 else lambda x: choose(x) * gains[0]


def _scale(choose: Choice, gain: Float[Tensor, "*c"], x: Float[Tensor, "*b d"]) -> Tensor:
    chosen = choose(x)
    return chosen * gain.to(chosen)


def _slices(index: Int[Tensor, "*c"]) -> Choice | None:
    return _equally_spaced_rows(index) or _joined_runs(index) or _swapped_neighbours(index)


def _look_up(index: Int[Tensor, "*c"], x: Shaped[Tensor, "*b d"]) -> Tensor:
    return x.index_select(-1, index.flatten().to(x.device)).unflatten(-1, index.shape)


def _equally_spaced_rows(index: Int[Tensor, "*c"]) -> Choice | None:
    """The choice of rows that begin `step` coordinates after each other."""
    rows = index.reshape(-1, index.shape[-1])
    (n_rows, width), start = rows.shape, int(rows[0, 0])
    step = width if n_rows == 1 else int(rows[1, 0]) - start
    starts = start + step * torch.arange(n_rows, device=index.device)[:, None]
    if step <= 0 or not torch.equal(rows, starts + torch.arange(width, device=index.device)):
        return None
    columns = slice(start, start + step * (n_rows - 1) + width)
    if n_rows == 1:
        return lambda x: x[..., columns].unflatten(-1, index.shape)
    return lambda x: x[..., columns].unfold(-1, width, step)


def _joined_runs(index: Int[Tensor, "*c"]) -> Choice | None:
    """The choice of a few runs of consecutive coordinates."""
    ends = [*((index.flatten().diff() != 1).nonzero().flatten() + 1).tolist(), index.numel()]
    if len(ends) > MOST_RUNS:
        return None
    firsts = index.flatten()[[0, *ends[:-1]]].tolist()
    runs = [slice(a, a + end - begin) for a, begin, end in zip(firsts, [0, *ends[:-1]], ends, strict=True)]
    return lambda x: torch.cat([x[..., run] for run in runs], -1).unflatten(-1, index.shape)


def _swapped_neighbours(index: Int[Tensor, "*c"]) -> Choice | None:
    """The choice of the first coordinates with every pair of neighbours swapped, as in rotations of neighbours."""
    n = index.numel()
    if n % 2 or not torch.equal(index.flatten(), torch.arange(n, device=index.device) ^ 1):
        return None
    return lambda x: torch.stack([x[..., 1:n:2], x[..., 0:n:2]], -1).flatten(-2).unflatten(-1, index.shape)
