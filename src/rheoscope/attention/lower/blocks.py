"""Any row-wise mechanism in O(N) memory: the definition, one block of queries at a time, forward and backward.

A block of queries meets every key that its mask may permit (and no other), so the weights of a row are complete and
any normaliser applies as it is. Gradients recompute a block instead of keeping it. A normaliser along rows and columns
in turn (Sinkhorn) is not row-wise: its two potentials are found first, in passes over blocks of rows and of columns, and
the last pass is row-wise again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rheoscope.attention.definition import Definition, for_every_head, positions
from rheoscope.attention.lower.block_size import numbers_at_once, numbers_in_one_piece
from rheoscope.attention.lower.lowering import Offer
from rheoscope.attention.parameters import tensors, with_tensors
from rheoscope.shapes import KeyAt, RowAt, Scores, Weights


def offer(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Offer | str:
    if not mechanism.normaliser.rowwise and not mechanism.normaliser.axes:
        return f"a row of {type(mechanism.normaliser).__name__} depends on more than its scores"
    held = q.shape[0] * q.shape[1] * q.shape[-2] * k.shape[-2] * mechanism.score.held
    small = held <= numbers_in_one_piece(q.device)
    return Offer(
        "the definition over blocks of queries, recomputed in the backward pass: O(N) memory",
        run,
        reluctant=f"all scores together are {held * 4 / 2**20:.3g} MiB, quicker in one piece" if small else "",
    )


@dataclass(frozen=True, eq=False)
class Block:
    """The weights of queries `rows` over keys `keys` (slices); every key outside has weight 0."""

    rows: slice
    keys: slice
    i: RowAt
    j: KeyAt
    weights: Weights


@dataclass(frozen=True, eq=False)
class Laid:
    """A call laid out for blocks: placed tokens for every head, folded once where the score allows it."""

    mechanism: Definition
    q: Tensor
    k: Tensor
    i: RowAt
    j: KeyAt
    score: Callable[[slice, slice], Scores]

    def scores(self, rows: slice, keys: slice) -> Scores:
        return with_bias_and_mask(self.mechanism, self.score(rows, keys), self.i[rows], self.j[keys])

    @property
    def rows(self) -> int:
        return block_rows(self.mechanism, self.q, self.k)


def lay(mechanism: Definition, q: Tensor, k: Tensor) -> Laid:
    exact = torch.promote_types(q.dtype, torch.float32)
    i, j = positions(q.shape[-2], k.shape[-2], q.device)
    q = mechanism.position.place(q.to(exact), i)
    k = mechanism.position.place(for_every_head(k.to(exact), q.shape[1]), j)
    form = mechanism.score.dot(q, k)
    row_bias = form.query_bias() if form is not None and form.query_bias is not None else None

    def folded(rows: slice, keys: slice) -> Scores:
        assert form is not None
        return form._replace(
            q=form.q[..., rows, :],
            k=form.k[..., keys, :],
            query_bias=None if row_bias is None else lambda: row_bias[..., rows],
            key_bias=None if form.key_bias is None else form.key_bias[..., keys],
        ).scores()

    def direct(rows: slice, keys: slice) -> Scores:
        return mechanism.score(q[..., rows, :], k[..., keys, :])

    return Laid(mechanism, q, k, i, j, direct if form is None else folded)


def block_rows(mechanism: Definition, q: Tensor, k: Tensor) -> int:
    """Queries in one block, so that what is held for it is what the device likes."""
    return max(1, numbers_at_once(q.device) // (q.shape[0] * q.shape[1] * k.shape[-2] * mechanism.score.held))


def spans(mechanism: Definition, q: Tensor, k: Tensor) -> Iterator[tuple[slice, slice]]:
    """Blocks of rows with the keys that their mask may permit."""
    m, n, rows = q.shape[-2], k.shape[-2], block_rows(mechanism, q, k)
    for low in range(0, m, rows):
        high = min(low + rows, m)
        first, last = mechanism.mask.span(low + n - m, high + n - m, n)
        yield slice(low, high), slice(first, last)


def walk(mechanism: Definition, q: Tensor, k: Tensor) -> Iterator[Block]:
    """Every block of weights in turn, none kept: what streaming statistics are made of."""
    laid = lay(mechanism, q, k)
    weigh = weighing(laid)
    for rows, keys in spans(mechanism, laid.q, laid.k):
        yield Block(rows, keys, laid.i[rows], laid.j[keys], weigh(rows, keys))


def run(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if not mechanism.normaliser.axes and not mechanism.score.opaque:
        return rowwise(mechanism, q, k, v)
    laid = lay(mechanism, q, k)
    values = mechanism.value(for_every_head(v.to(laid.q.dtype), q.shape[1]))
    weigh = weighing(laid)

    def block(rows: slice, keys: slice) -> Tensor:
        return weigh(rows, keys) @ values[..., keys, :]

    return torch.cat([recomputed(block, rows, keys) for rows, keys in spans(mechanism, laid.q, laid.k)], -2).to(v.dtype)


def rowwise(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Every block on its own, forward and backward; outputs and gradients are filled in place."""
    exact = torch.promote_types(q.dtype, torch.float32)
    i, j = positions(q.shape[-2], k.shape[-2], q.device)
    keys, values = for_every_head(k.to(exact), q.shape[1]), for_every_head(v.to(exact), q.shape[1])
    at_q, at_k = mechanism.position.place(q.to(exact), i), mechanism.position.place(keys, j)
    held = {path: x for path, x in tensors(mechanism).items() if x.is_floating_point()}
    out: Tensor = _Rowwise.apply(mechanism, list(held), at_q, at_k, mechanism.value(values), *held.values())
    return out.to(v.dtype)


def one_block(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor, i: RowAt, j: KeyAt) -> Tensor:
    """The definition on placed tokens: score, mask, normalise, average; 0 where no key is in reach."""
    if not len(j):
        return q.new_zeros(*q.shape[:-1], v.shape[-1])
    form = mechanism.score.dot(q, k)
    s = mechanism.score(q, k) if form is None else form.scores()
    return mechanism.normaliser(with_bias_and_mask(mechanism, s, i, j)) @ v


def with_bias_and_mask(mechanism: Definition, s: Scores, i: RowAt, j: KeyAt) -> Scores:
    bias, mask = mechanism.position.bias(i, j), mechanism.mask
    s = s if bias is None else s + bias.to(s.dtype)
    return s if mask.forbids_nothing else s.masked_fill(~mask(i, j), -torch.inf)


class _Rowwise(torch.autograd.Function):
    """A loop over blocks that keeps its inputs alone; the backward pass computes each block again."""

    @staticmethod
    def forward(
        ctx: Any, mechanism: Definition, paths: list[str], q: Tensor, k: Tensor, v: Tensor, *held: Tensor
    ) -> Tensor:
        ctx.mechanism, ctx.paths = mechanism, paths
        ctx.save_for_backward(q, k, v, *held)
        i, j = positions(q.shape[-2], k.shape[-2], q.device)
        out = q.new_empty(*q.shape[:-1], v.shape[-1])
        for rows, keys in spans(mechanism, q, k):
            out[..., rows, :] = one_block(
                mechanism, q[..., rows, :], k[..., keys, :], v[..., keys, :], i[rows], j[keys]
            )
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *held = ctx.saved_tensors
        i, j = positions(q.shape[-2], k.shape[-2], q.device)
        total = [torch.zeros_like(x) for x in (q, k, v, *held)]
        for rows, keys in spans(ctx.mechanism, q, k):
            places = [(..., rows, slice(None)), (..., keys, slice(None)), (..., keys, slice(None))] + [...] * len(held)
            leaves = [x[at].detach().requires_grad_() for x, at in zip((q, k, v, *held), places, strict=True)]
            with torch.enable_grad():
                mechanism = with_tensors(ctx.mechanism, dict(zip(ctx.paths, leaves[3:], strict=True)))
                part = one_block(mechanism, leaves[0], leaves[1], leaves[2], i[rows], j[keys])
            if part.requires_grad:
                found = torch.autograd.grad(part, leaves, g[..., rows, :], allow_unused=True)
                for sum_of, at, one in zip(total, places, found, strict=True):
                    if one is not None:
                        sum_of[at] += one
        return None, None, *total


def weighing(laid: Laid) -> Callable[[slice, slice], Weights]:
    """The function from a block's place to its weights; along two axes the potentials are found first."""
    normaliser = laid.mechanism.normaliser
    if normaliser.axes:
        f, g = potentials(laid, normaliser.axes)
        return lambda rows, keys: (laid.scores(rows, keys) + f[..., rows, None] + g[..., None, keys]).exp()

    def weigh(rows: slice, keys: slice) -> Weights:
        s = laid.scores(rows, keys)
        return normaliser(s) if s.shape[-1] else s

    return weigh


def potentials(laid: Laid, axes: tuple[int, ...]) -> tuple[Float[Tensor, "b h m"], Float[Tensor, "b h n"]]:
    """f, g with weights exp(s_ij + f_i + g_j): each half-round is one pass over blocks, O(N) kept."""
    everything = slice(0, len(laid.i))
    f = g = laid.q.new_zeros(laid.q.shape[:3])

    def row_pass(part: slice, g: Tensor) -> Tensor:
        return -(laid.scores(part, everything) + g[..., None, :]).logsumexp(-1)

    def column_pass(part: slice, f: Tensor) -> Tensor:
        return -(laid.scores(everything, part) + f[..., :, None]).logsumexp(-2)

    parts = [slice(low, min(low + laid.rows, len(laid.i))) for low in range(0, len(laid.i), laid.rows)]
    for axis in axes:
        if axis == -1:
            f = torch.cat([recomputed(row_pass, part, g) for part in parts], -1)
        else:
            g = torch.cat([recomputed(column_pass, part, f) for part in parts], -1)
    return f, g


def recomputed(step: Callable[..., Tensor], *args: object) -> Tensor:
    """step(*args), of which the backward pass keeps nothing and computes it again."""
    if not torch.is_grad_enabled():
        return step(*args)
    return checkpoint(step, *args, use_reentrant=False, preserve_rng_state=False)
