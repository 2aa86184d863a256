"""What heads of the same singular values, turned at random, would give: known moments, and draws of what they see.

symmetry_null, mean_draws     of the weights alone: from singular values and r x r matrices
mismatch_null                 of two spaces: from their rank
turned                        of a cloud: the cloud turned instead of the heads
"""

import math
from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from rheoscope.attention.lower.block_size import numbers_in_cache
from rheoscope.space.safe_arithmetic import share
from rheoscope.statistics.nulls import corners, rotations, signs

POOLED = 2**13
"""Columns of corners that are drawn at most: beyond that they are used again, their columns in another order and turned over."""
EVEN = {"copying": 0.0, "alignment": 0.0, "positive_share": 0.5}
"""Numbers that −M or −F, a random operator as well, has on the other side of this."""


def symmetry_null(S: Float[Tensor, "*h r"], width: int) -> tuple[Float[Tensor, "*h"], Float[Tensor, "*h"]]:
    """Mean and standard deviation of tr(M'M')/‖M‖² for M' = Q M Q'ᵀ, from the singular values of M; 0 for M = 0.

    **Formula** R = Q'ᵀQ is even, so of four of its entries the mean over pairings of rows and of columns is known
    (Weingarten): E tr(MRMR) = ‖M‖²/d, E tr(MRMR)² = (3(d + 1)‖M‖⁴ − 6 Σs⁴) / (d(d − 1)(d + 2)).

    >>> [round(float(x), 4) for x in symmetry_null(torch.ones(64), 576)]  # 1/d and about √2/d
    [0.0017, 0.0025]
    """
    square = S.square()
    alone = share(square.square().sum(-1), square.sum(-1).square())
    mean = (square.sum(-1) > 0) / width
    if width == 1:
        return mean, torch.zeros_like(mean)
    second = (3 * (width + 1) - 6 * alone) / (width * (width - 1) * (width + 2))
    return mean, torch.where(mean > 0, (second - 1 / width**2).clamp(min=0).sqrt(), 0)


def mean_draws(
    found: Mapping[str, Float[Tensor, "layer h *r"]], width: int, draws: int, seed: int
) -> dict[str, Float[Tensor, " draw"]]:
    """The mean over all heads of symmetry, copying, alignment and positive share when every head is turned at random.

    The last three are turned over (−I is a rotation), each head by itself.
    """
    generator = Generator().manual_seed(seed)
    S = found["singular_values_M"].double().flatten(0, 1)
    drawn = {"symmetry": torch.stack(list(symmetry_draws(S, width, draws, generator))).mean(-1).cpu()}
    for name, middle in EVEN.items():
        off = found[name].double().cpu().flatten() - middle
        drawn[name] = middle + (signs(len(off), draws, generator) * off).mean(-1)
    return {f"mean_{name}_drawn": x for name, x in drawn.items()}


def symmetry_draws(
    S: Float[Tensor, "h r"], width: int, draws: int, generator: Generator
) -> Iterator[Float[Tensor, " h"]]:
    """tr(SWSW)/tr(S²), draw by draw, W = VᵀRU the corner of a rotation that is all of it that M = U S Vᵀ sees."""
    S = S[:, :width]
    S = (S / S.square().sum(-1, keepdim=True).sqrt().clamp(min=torch.finfo(S.dtype).tiny)).float()
    heads, rank = S.shape
    pool = corners(min(draws * heads, math.ceil(POOLED / rank)), rank, width, generator).to(S.device)
    columns = pool.mT.contiguous()  # Wᵀ, which has the trace of W: a column that is chosen is then copied as one piece
    at_once = max(1, numbers_in_cache(S.device) // (heads * rank**2))
    for some in torch.arange(draws).split(at_once):
        if len(pool) == draws * heads:
            yield from _traces(pool.unflatten(0, (draws, heads))[some.to(S.device)], S)
        else:
            drawn = [_drawn_again(len(pool), heads, rank, generator) for _ in some]
            which, order, turned_over = (torch.stack(each).to(S.device) for each in zip(*drawn, strict=True))
            yield from _traces(columns[which[..., None], order.argsort(-1)], S * turned_over)


def _drawn_again(pool: int, heads: int, rank: int, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Which corner every head gets, by what its columns are ordered, and which of them are turned over."""
    which = torch.randint(pool, (heads,), generator=generator)
    return which, torch.rand(heads, rank, generator=generator), signs(rank, heads, generator)


def _traces(W: Float[Tensor, "draw h r r"], S: Float[Tensor, "*#draw h r"]) -> Float[Tensor, "draw h"]:
    """tr(S W S W) of every head; S may carry signs, which are those of the columns of W."""
    S = S.expand(W.shape[:-1])
    return torch.einsum("dhij,dhi,dhj->dh", W * W.mT, S, S).double()


# Two spaces


def mismatch_null(rank: Float[Tensor, "*h"], width: int) -> tuple[Float[Tensor, "*h"], Float[Tensor, "*h"]]:
    """Mean and standard deviation of the mean sin² of the angles between two random spaces of a rank.

    >>> [round(float(x), 4) for x in mismatch_null(torch.tensor(64.0), 576)]
    [0.8889, 0.0022]
    """
    mean = (1 - rank / width).clamp(min=0)
    return mean, mean * math.sqrt(2 / max(1, (width - 1) * (width + 2)))


# A cloud


def turned(width: int, draws: int, seed: int, device: torch.device) -> Float[Tensor, "draw d d"]:
    """Rotations of E, the same ones for all heads and layers: x̂Q read by a head is x̂ read by the head turned, QM.

    Heads that share a key still share it when all are turned together, so a mean over heads has the spread of random ones.
    """
    return rotations(draws, width, Generator().manual_seed(seed)).to(device)
