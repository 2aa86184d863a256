"""Ranks along rows of which only some entries count, many rows at a time."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def ranked(x: Float[Tensor, "*t m n"], usable: Bool[Tensor, "m n"]) -> Float[Tensor, "*t m n"]:
    """The rank of every usable entry among those of its row, less the mean rank; 0 elsewhere. Float64.

    Entries that are equal but for rounding share their mean rank. Inner products of such rows are what Spearman's
    correlation is made of.

    >>> ranked(torch.tensor([[3.0, 1.0, 9.0, 1.0]]), torch.tensor([[True, True, False, True]])).tolist()
    [[1.0, -0.5, 0.0, -0.5]]
    """
    size = torch.where(usable, x, 0).abs().amax(-1, keepdim=True).double()
    filled = torch.where(usable, x.double(), float("inf"))
    order = ordered(filled)
    filled = filled.gather(-1, order)
    tied = filled.diff(dim=-1) <= 16 * torch.finfo(x.dtype).eps * size  # ∞ − ∞ is NaN and no tie
    places = torch.arange(x.shape[-1], dtype=torch.float64, device=x.device)
    some = tied.any(-1)
    if bool(some.any()):
        places = places.expand(x.shape).contiguous()
        places[some] = _shared(tied[some])
    else:
        places = places.expand(x.shape)
    ranks = torch.empty_like(filled).scatter_(-1, order, places)
    return torch.where(usable, ranks - (usable.sum(-1, keepdim=True) - 1) / 2, 0)


def spearman(
    a: Float[Tensor, "*#t n"], b: Float[Tensor, "*#t n"], usable: Bool[Tensor, " n"] | None = None
) -> Float[Tensor, "*t"]:
    """Rank correlation along the last axis, over the usable entries; NaN with fewer than 2, or where one does not vary.

    >>> round(float(spearman(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([0.1, 0.2, 0.3]))), 6)
    1.0
    """
    usable = torch.ones(a.shape[-1], dtype=torch.bool, device=a.device) if usable is None else usable
    one, other = (ranked(x[..., None, :], usable[None])[..., 0, :] for x in (a, b))
    return (one * other).sum(-1) / (one.norm(dim=-1) * other.norm(dim=-1))


def ordered(x: Float[Tensor, "*t n"]) -> Int[Tensor, "*t n"]:
    """Places of the entries of every row from the smallest on; NumPy sorts rows on a CPU four times as fast as torch."""
    if x.device.type != "cpu":
        return x.argsort(-1)
    return torch.from_numpy(x.detach().numpy().argsort(-1))


def _shared(tied: Bool[Tensor, "r n1"]) -> Float[Tensor, "r n"]:
    """Mean places of runs: tied[:, p] says that sorted entries p and p + 1 are equal."""
    edge = torch.ones_like(tied[:, :1])
    places = torch.arange(tied.shape[-1] + 1, device=tied.device)
    first = torch.where(torch.cat([edge, ~tied], -1), places, 0).cummax(-1).values
    last = torch.where(torch.cat([~tied, edge], -1), places, len(places)).flip(-1).cummin(-1).values.flip(-1)
    return (first + last).double() / 2
