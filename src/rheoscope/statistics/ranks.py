"""Ranks along rows of which only some entries count, many rows at a time, and the correlation of ranks."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

LONG, CLASSES = 1 << 17, 1 << 18
"""A row that is longer than this is ranked in so many classes on a GPU."""


def ranked(x: Float[Tensor, "*t m n"], usable: Bool[Tensor, "*#t #m n"]) -> Float[Tensor, "*t m n"]:
    """The rank of every usable entry among those of its row, less the mean rank; 0 elsewhere. Float64.

    Entries that are equal but for rounding share their mean rank. Inner products of such rows are what Spearman's
    correlation is made of.

    >>> ranked(torch.tensor([[3.0, 1.0, 9.0, 1.0]]), torch.tensor([[True, True, False, True]])).tolist()
    [[1.0, -0.5, 0.0, -0.5]]
    """
    if x.device.type != "cpu":
        return (ranked_in_classes if x.shape[-1] > LONG else ranked_by_search)(x, usable)
    size = torch.where(usable, x, 0).abs().amax(-1, keepdim=True).double()
    filled = torch.where(usable, x.double(), float("inf"))
    order = ordered(filled)
    filled = filled.gather(-1, order)
    tied = filled.diff(dim=-1) <= 16 * torch.finfo(x.dtype).eps * size  # ∞ − ∞ is NaN and no tie
    places = torch.arange(x.shape[-1], dtype=torch.float64)
    some = tied.any(-1)
    if bool(some.any()):
        places = places.expand(x.shape).contiguous()
        places[some] = _shared(tied[some])
    else:
        places = places.expand(x.shape)
    ranks = torch.empty_like(filled).scatter_(-1, order, places)
    return torch.where(usable, ranks - (usable.sum(-1, keepdim=True) - 1) / 2, 0)


def ranked_by_search(x: Float[Tensor, "*t m n"], usable: Bool[Tensor, "*#t #m n"]) -> Float[Tensor, "*t m n"]:
    """The same on a GPU, which sorts fast, and faster without places: how many are smaller, and how many are not larger.

    Numbers alone travel and nothing is asked of the device. What is equal but for rounding is what lies within 16 ulp of the
    row's largest number, where on a CPU runs of neighbours may reach further.
    """
    x, count = torch.where(usable, x, float("inf")).contiguous(), usable.sum(-1, keepdim=True, dtype=torch.int32)
    line = x.sort(-1).values
    last = line.gather(-1, (count - 1).clamp(min=0).long().expand(*x.shape[:-1], 1))
    apart = 16 * torch.finfo(x.dtype).eps * torch.maximum(line[..., :1].abs(), last.abs())
    apart = torch.where(count > 0, apart, 0)
    twice = torch.searchsorted(line, x - apart, out_int32=True)
    twice = twice.add_(torch.searchsorted(line, x.add_(apart), right=True, out_int32=True)).sub_(count)
    return torch.where(usable, twice, 0).double().div_(2)


def ranked_in_classes(x: Float[Tensor, "*t m n"], usable: Bool[Tensor, "*#t #m n"]) -> Float[Tensor, "*t m n"]:
    """The same of long rows, in float32: numbers of one class, of 2¹⁸ equally wide ones, share their mean rank.

    Of half a million distances a class holds a few: a correlation of such ranks is off by less than 1e-5.
    """
    low = torch.where(usable, x, torch.inf).amin(-1, keepdim=True).clamp(max=torch.finfo(x.dtype).max)
    x = torch.where(usable, x, low) - low
    high = x.amax(-1, keepdim=True)
    at = (x * torch.where(high > 0, (CLASSES - 1) / high, 0)).long()
    count = torch.zeros(*x.shape[:-1], CLASSES, dtype=torch.int32, device=x.device)
    count.scatter_add_(-1, at, usable.int().expand_as(at))
    mean = count.cumsum(-1, dtype=torch.int32).float() - (count.float() + 1) / 2
    return torch.where(usable, mean.gather(-1, at) - (usable.sum(-1, keepdim=True) - 1) / 2, 0)


def unit_ranks(x: Float[Tensor, "*t n"], usable: Bool[Tensor, "*#m n"] | None = None) -> Float[Tensor, "*t n"]:
    """Ranks along rows, centred and of length 1, so that an inner product of two is Spearman's correlation; 0 where all are equal.

    >>> unit_ranks(torch.tensor([5.0, 8.0])).round(decimals=3).tolist()
    [-0.707, 0.707]
    """
    rows = x if x.ndim > 1 else x[None]
    ranks = ranked(rows, rows.new_ones(rows.shape[-2:], dtype=torch.bool) if usable is None else usable)
    size = ranks.norm(dim=-1, keepdim=True)
    return torch.where(size > 0, ranks / torch.where(size > 0, size, 1), 0).reshape(x.shape)


def spearman(
    a: Float[Tensor, "*#t n"], b: Float[Tensor, "*#t n"], usable: Bool[Tensor, "m n"] | None = None
) -> Float[Tensor, "*t"]:
    """Spearman's rank correlation along rows, over the usable entries; 0 where one of the two does not vary.

    >>> round(float(spearman(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([0.1, 0.3, 0.2]))), 6)
    0.5
    """
    return (unit_ranks(a, usable) * unit_ranks(b, usable)).sum(-1)


def ordered(x: Float[Tensor, "*t n"]) -> Int[Tensor, "*t n"]:
    """Places of the entries of every row from the smallest on, of equal ones the earlier first; NaN comes last.

    On a CPU the places travel in the last bits of the numbers, so that numbers alone are sorted, twice as fast as places: float64 that
    are equal but for those bits (2⁻⁴² of the number in a row of a thousand) are taken for equal; float32 all differ.

    >>> ordered(torch.tensor([[3.0, -1.0, 9.0, -1.0]])).tolist()
    [[1, 3, 0, 2]]
    """
    if x.device.type != "cpu":
        return x.argsort(stable=True, dim=-1)
    bits = x.detach().double().contiguous().numpy().view(np.int64)
    mask = (1 << max(1, (x.shape[-1] - 1).bit_length())) - 1
    packed = bits ^ ((bits >> 63) & np.int64(2**63 - 1))  # as numbers, negative ones turned round, in their order
    packed &= ~np.int64(mask)
    packed |= np.arange(x.shape[-1], dtype=np.int64)
    packed.sort(-1)
    packed &= np.int64(mask)
    return torch.from_numpy(packed)


def _shared(tied: Bool[Tensor, "r n1"]) -> Float[Tensor, "r n"]:
    """Mean places of runs: tied[:, p] says that sorted entries p and p + 1 are equal."""
    edge = torch.ones_like(tied[:, :1])
    places = torch.arange(tied.shape[-1] + 1, device=tied.device)
    first = torch.where(torch.cat([edge, ~tied], -1), places, 0).cummax(-1).values
    last = torch.where(torch.cat([~tied, edge], -1), places, len(places)).flip(-1).cummin(-1).values.flip(-1)
    return (first + last).double() / 2
