"""The agreement of single queries, of many texts at once: scores against cosines, position and length partialled out.

Tokens stay where they are; keys that do not count (padding, massive tokens) are not `usable` and have no rank.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.attention.definition import for_every_head
from rheoscope.attention.mechanism import Mechanism
from rheoscope.covers.layer_inputs import ReadMany
from rheoscope.space.device_transfer import to_device
from rheoscope.space.head import through
from rheoscope.space.masked_means import centred
from rheoscope.space.safe_arithmetic import exact
from rheoscope.statistics.nulls import drawn_rows
from rheoscope.statistics.ranks import ranked

Turned = tuple[Float[Tensor, "c d d"], Float[Tensor, "c d d"]]
"""Random rotations of E for queries and for keys."""
Sides = Float[Tensor, "c b h n k"]


@dataclass(frozen=True, eq=False)
class Block:
    """Some queries of every text: their places, which of them are there (a short text has fewer), and the last place of all."""

    at: Int[Tensor, "b m"]
    there: Bool[Tensor, "b m"]
    last: int


@dataclass(frozen=True, eq=False)
class DrawnQueries:
    """The queries that are looked at: in blocks, with the share of each text's tokens that is left out; and whether any is at all.

    `before` is how many tokens that count lie before the last query of a text, the fewest of all texts: known before a device is asked.
    """

    blocks: list[Block]
    left_out: Float[Tensor, " b"]
    sampled: bool
    before: int


def drawn_queries(
    kept: Bool[Tensor, "b n"], most: int | None, seed: int, at_once: int, device: torch.device | None = None
) -> DrawnQueries:
    """The queries that are looked at, on a device, in blocks of `at_once` a text; `kept`, which tokens count, is on the CPU.

    All tokens that count or, of more than `most`, so many, drawn from the seed for each text as if it were alone.

    >>> drawn = drawn_queries(torch.tensor([[True, False, True], [True, True, True]]), 2, seed=0, at_once=8)
    >>> drawn.blocks[0].at.shape, drawn.left_out.tolist(), drawn.sampled
    (torch.Size([2, 2]), [0.0, 0.3333333432674408], True)
    """
    places = [row.nonzero()[:, 0] for row in kept]
    picked = [drawn_rows(len(at), most, seed) for at in places]
    some = [at[which] for at, which in zip(places, picked, strict=True)]
    size = max(map(len, some))
    at = torch.stack([torch.nn.functional.pad(one, (0, size - len(one))) for one in some])
    there = torch.stack([torch.arange(size) < len(one) for one in some])
    parts = zip(at.split(at_once, 1), there.split(at_once, 1), strict=True)
    left_out = torch.tensor([1 - len(one) / len(whole) for one, whole in zip(some, places, strict=True)])
    blocks = [Block(to_device(one, device), to_device(seen, device), int(one.max())) for one, seen in parts]
    return DrawnQueries(
        blocks, to_device(left_out, device), bool(left_out.any()), before=min(int(one[-1]) for one in picked)
    )


def sides(read: ReadMany, turned: Turned | None) -> tuple[Sides, Sides]:
    """Queries and keys of every head, in their places: the model's own, or those of clouds turned at random."""
    heads, (b, n) = read.heads, read.kept.shape
    if turned is None:
        q, k, _ = heads.read(read.x)
    else:
        asking, answering = (heads.norm.centre(read.hat @ Q.to(read.hat.dtype)[:, None]).flatten(0, 1) for Q in turned)
        q = through(heads.norm, asking, heads.W_Q, heads.b_Q, heads.q_norm)
        k = through(heads.norm, answering, heads.W_K, heads.b_K, heads.k_norm)
    place, at = heads.mechanism.position.place, torch.arange(n, device=read.x.device)
    q, k = place(exact(q), at), place(for_every_head(exact(k), heads.count), at)
    return q.unflatten(0, (-1, b)), k.unflatten(0, (-1, b))


def by_query(
    read: ReadMany, q: Sides, k: Sides, start: Float[Tensor, "b n d"], least: int, blocks: list[Block]
) -> Iterator[tuple[Bool[Tensor, "b m"], Float[Tensor, "c b h m 5"]]]:
    """The five correlations of single queries, block after block, and which of them have enough keys to count."""
    kept = read.kept
    clouds = torch.stack([centred(read.hat, None if read.every else kept), read.hat])
    length = clouds.norm(dim=-1)
    inverse, mask, places = one_over(length), read.heads.mechanism.mask, torch.arange(kept.shape[1], device=kept.device)
    for block in blocks:
        to = mask.span(0, block.last + 1, len(places))[1]  # under a causal mask nothing lies beyond
        at, j = block.at, places[:to]
        usable = mask(at.flatten(), j).unflatten(0, at.shape) & kept[:, None, :to] & (at[..., None] != j)
        cosines = (_rows(clouds, at) @ clouds[:, :, :to].mT).mul_(inverse[:, :, None, :to])
        cosines = cosines.mul_(inverse.gather(-1, at.expand(2, -1, -1))[..., None])
        first = (_rows(start, at) @ start[:, :to].mT)[None]
        far = (at[..., None] - j).abs()[None].to(first.dtype)
        s = scores_at(read, q, k[..., :to, :], at, j).transpose(1, 2).flatten(0, 1)
        ranks = ranked(torch.cat([cosines, first, length[:1, :, None, :to].expand_as(first), far, s]), usable)
        enough = block.there & (usable.sum(-1) >= least)
        yield enough, correlations(ranks[5:], targets(ranks[:5])).unflatten(0, (len(q), -1)).transpose(1, 2)


def one_over(length: Float[Tensor, "*t n"]) -> Float[Tensor, "*t n"]:
    """1/length; 0 where it is 0 but for rounding, beside the longest."""
    longest = length.amax(-1, keepdim=True)
    return torch.where(length > 1e-6 * longest, length, torch.inf).reciprocal()


def scores_at(
    read: ReadMany, q: Sides, k: Float[Tensor, "c b h t k"], at: Int[Tensor, "b m"], j: Int[Tensor, " t"]
) -> Float[Tensor, "c b h m t"]:
    """Scores of some queries of every text with keys j, cap and position included."""
    bare = Mechanism(read.heads.mechanism.score, position=read.heads.mechanism.position)
    rows = _rows(q, at[:, None].expand(-1, q.shape[2], -1))
    s = bare.score(rows.flatten(0, 1), k.flatten(0, 1)).unflatten(0, q.shape[:2])
    bias = bare.position.bias(at.flatten(), j)
    return s if bias is None else s + bias.unflatten(-2, at.shape).transpose(-4, -3).to(s.dtype)


def _rows(x: Float[Tensor, "*t n d"], at: Int[Tensor, "*#t m"]) -> Float[Tensor, "*t m d"]:
    """Rows of every text at its own places."""
    return x.take_along_dim(at.expand(*x.shape[:-2], -1)[..., None], -2)


def targets(ranks: Float[Tensor, "5 b m n"]) -> Float[Tensor, "b m n 6"]:
    """Six unit rows for every query, from the ranks of three cosines, of the length of the key and of its distance.

    The two that are partialled out (orthonormal), the raw cosine, three partial ones. A rank correlation with one of them is an
    inner product, so that all heads of a layer share this work.
    """
    size = ranks.norm(dim=-1, keepdim=True)
    far = unit(ranks[4], size[4], size[4])
    rest = _without(ranks[:4], far)
    length = unit(rest[3], rest[3].norm(dim=-1, keepdim=True), size[3])
    partial = _without(rest[:3], length)
    partial = unit(partial, partial.norm(dim=-1, keepdim=True), size[:3])
    return torch.stack([far, length, unit(ranks[0], size[0], size[0]), *partial], -1)


def correlations(ranks: Float[Tensor, "h b m n"], wanted: Float[Tensor, "b m n 6"]) -> Float[Tensor, "h b m 5"]:
    """The five correlations of MEANS for every query; 0 where something does not vary."""
    along = torch.einsum("hbmn,bmnt->hbmt", ranks, wanted)
    whole = ranks.norm(dim=-1).square()
    rest = whole - along[..., :2].square().sum(-1)
    partial = along[..., 3:] / _or_infinite(rest, whole).sqrt()[..., None]
    raw = along / _or_infinite(whole, whole).sqrt()[..., None]
    return torch.stack([partial[..., 0], raw[..., 2], partial[..., 1], partial[..., 2], -raw[..., 0]], -1)


def _or_infinite(square: Tensor, whole: Tensor) -> Tensor:
    """A squared length; infinite where it is 0 but for rounding, so that what is divided by it is 0."""
    return torch.where(square > 1e-9 * whole, square, float("inf"))


def _without(x: Float[Tensor, "*t m n"], along: Float[Tensor, "*#t m n"]) -> Float[Tensor, "*t m n"]:
    """x less its part along unit rows."""
    return x - (x * along).sum(-1, keepdim=True) * along


def unit(
    x: Float[Tensor, "*t n d"], length: Float[Tensor, "*t n 1"], beside: Float[Tensor, "*#t #n 1"]
) -> Float[Tensor, "*t n d"]:
    """Rows of these lengths made of length 1; 0 where one is 0 but for rounding, beside another."""
    return x * torch.where(length > 1e-6 * beside, length, torch.inf).reciprocal()


def directions(x: Float[Tensor, "*t n d"]) -> Float[Tensor, "*t n d"]:
    """Rows of length 1; 0 where one is 0 but for rounding, beside the longest."""
    return x * one_over(x.norm(dim=-1))[..., None]
