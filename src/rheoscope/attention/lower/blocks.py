"""Any row-wise mechanism in O(N) memory: the definition on one block of queries at a time, forward and backward.

A block of queries sees every key that its mask may allow and no other. Its rows of weights are complete, so any
normaliser applies. The backward pass recomputes a block instead of storing it. A normaliser that alternates between rows
and columns (Sinkhorn) is not row-wise. Its two potentials are computed first, in passes over blocks of rows and of
columns, and then the last pass is row-wise.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rheoscope.attention.definition import Definition, query_key_positions, repeat_kv_heads
from rheoscope.attention.lower.block_size import block_numel, unblocked_numel
from rheoscope.attention.lower.lowering import LoweredCall, unless_compiling
from rheoscope.attention.parameters import tensors_by_path, with_tensors
from rheoscope.messages.message import Message
from rheoscope.shapes import KeyPositions, QueryPositions, Scores, Weights


def try_lower(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> LoweredCall | str:
    if not mechanism.normaliser.is_rowwise and not mechanism.normaliser.normalisation_axes:
        return unless_compiling(
            lambda: Message(
                "a row of {normaliser} depends on more than its own scores",
                normaliser=type(mechanism.normaliser).__name__,
            )
        )
    n_values = q.shape[0] * q.shape[1] * q.shape[-2] * k.shape[-2] * mechanism.score.numbers_per_pair
    is_small = n_values <= unblocked_numel(q.device)
    reason = unless_compiling(
        lambda: Message("the definition in blocks of queries, recomputed in the backward pass, in O(N) memory")
    )
    drawback = unless_compiling(
        lambda: Message("all scores take {size:.3g} MiB, which is faster without blocks", size=n_values * 4 / 2**20)
    )
    return LoweredCall(reason, run, drawback if is_small else "")


@dataclass(frozen=True, eq=False)
class Block:
    """The weights of the queries in slice `rows` over the keys in slice `keys`. All other keys have weight 0."""

    rows: slice
    keys: slice
    i: QueryPositions
    j: KeyPositions
    weights: Weights


@dataclass(frozen=True, eq=False)
class BlockScorer:
    """A call prepared for blocks: tokens with their positions, and the dot form computed once if there is one."""

    mechanism: Definition
    q: Tensor
    k: Tensor
    i: QueryPositions
    j: KeyPositions
    raw_score: Callable[[slice, slice], Scores]

    def scores(self, rows: slice, keys: slice) -> Scores:
        return add_bias_and_mask(self.mechanism, self.raw_score(rows, keys), self.i[rows], self.j[keys])

    @property
    def rows_per_block(self) -> int:
        return block_rows(self.mechanism, self.q, self.k)


def make_block_scorer(mechanism: Definition, q: Tensor, k: Tensor) -> BlockScorer:
    compute_dtype = torch.promote_types(q.dtype, torch.float32)
    i, j = query_key_positions(q.shape[-2], k.shape[-2], q.device)
    q = mechanism.position.encode(q.to(compute_dtype), i)
    k = mechanism.position.encode(repeat_kv_heads(k.to(compute_dtype), q.shape[1]), j)
    dot_form = mechanism.score.dot_form(q, k)
    row_bias = dot_form.query_bias() if dot_form is not None and dot_form.query_bias is not None else None

    def score_folded(rows: slice, keys: slice) -> Scores:
        assert dot_form is not None
        return dot_form._replace(
            q=dot_form.q[..., rows, :],
            k=dot_form.k[..., keys, :],
            query_bias=None if row_bias is None else lambda: row_bias[..., rows],
            key_bias=None if dot_form.key_bias is None else dot_form.key_bias[..., keys],
        ).scores()

    def score_direct(rows: slice, keys: slice) -> Scores:
        return mechanism.score(q[..., rows, :], k[..., keys, :])

    return BlockScorer(mechanism, q, k, i, j, score_direct if dot_form is None else score_folded)


def block_rows(mechanism: Definition, q: Tensor, k: Tensor) -> int:
    """The number of queries in a block, from the block size of the device."""
    return max(1, block_numel(q.device) // (q.shape[0] * q.shape[1] * k.shape[-2] * mechanism.score.numbers_per_pair))


def block_spans(mechanism: Definition, q: Tensor, k: Tensor) -> Iterator[tuple[slice, slice]]:
    """Blocks of rows, each with the keys that the mask may allow."""
    m, n, n_rows = q.shape[-2], k.shape[-2], block_rows(mechanism, q, k)
    for row_start in range(0, m, n_rows):
        row_end = min(row_start + n_rows, m)
        key_start, key_end = mechanism.mask.key_range(row_start + n - m, row_end + n - m, n)
        yield slice(row_start, row_end), slice(key_start, key_end)


def iterate_blocks(mechanism: Definition, q: Tensor, k: Tensor) -> Iterator[Block]:
    """The blocks of weights one after another, for statistics that never store all weights."""
    scorer = make_block_scorer(mechanism, q, k)
    block_weights = block_weights_function(scorer)
    for rows, keys in block_spans(mechanism, scorer.q, scorer.k):
        yield Block(rows, keys, scorer.i[rows], scorer.j[keys], block_weights(rows, keys))


def run(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if not mechanism.normaliser.normalisation_axes and not mechanism.score.is_opaque:
        return rowwise_attention(mechanism, q, k, v)
    scorer = make_block_scorer(mechanism, q, k)
    values = mechanism.value(repeat_kv_heads(v.to(scorer.q.dtype), q.shape[1]))
    block_weights = block_weights_function(scorer)

    def attend_block(rows: slice, keys: slice) -> Tensor:
        return block_weights(rows, keys) @ values[..., keys, :]

    return torch.cat(
        [with_recompute(attend_block, rows, keys) for rows, keys in block_spans(mechanism, scorer.q, scorer.k)], -2
    ).to(v.dtype)


def rowwise_attention(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention block by block, forward and backward, with outputs and gradients written in place."""
    compute_dtype = torch.promote_types(q.dtype, torch.float32)
    i, j = query_key_positions(q.shape[-2], k.shape[-2], q.device)
    keys, values = repeat_kv_heads(k.to(compute_dtype), q.shape[1]), repeat_kv_heads(v.to(compute_dtype), q.shape[1])
    positioned_q, positioned_k = mechanism.position.encode(q.to(compute_dtype), i), mechanism.position.encode(keys, j)
    float_tensors = {path: tensor for path, tensor in tensors_by_path(mechanism).items() if tensor.is_floating_point()}
    out: Tensor = _RowwiseAttention.apply(
        mechanism, list(float_tensors), positioned_q, positioned_k, mechanism.value(values), *float_tensors.values()
    )
    return out.to(v.dtype)


def block_attention(
    mechanism: Definition, q: Tensor, k: Tensor, v: Tensor, i: QueryPositions, j: KeyPositions
) -> Tensor:
    """The definition on positioned tokens: score, mask, normalise and average. Without keys the output is 0."""
    if not len(j):
        return q.new_zeros(*q.shape[:-1], v.shape[-1])
    dot_form = mechanism.score.dot_form(q, k)
    s = mechanism.score(q, k) if dot_form is None else dot_form.scores()
    return mechanism.normaliser(add_bias_and_mask(mechanism, s, i, j)) @ v


def add_bias_and_mask(mechanism: Definition, s: Scores, i: QueryPositions, j: KeyPositions) -> Scores:
    bias, mask = mechanism.position.bias(i, j), mechanism.mask
    s = s if bias is None else s + bias.to(s.dtype)
    return s if mask.allows_all else s.masked_fill(~mask(i, j), -torch.inf)


class _RowwiseAttention(torch.autograd.Function):
    """A loop over blocks that saves only its inputs. The backward pass recomputes each block."""

    @staticmethod
    def forward(
        ctx: Any, mechanism: Definition, paths: list[str], q: Tensor, k: Tensor, v: Tensor, *float_tensors: Tensor
    ) -> Tensor:
        ctx.mechanism, ctx.parameter_paths = mechanism, paths
        ctx.save_for_backward(q, k, v, *float_tensors)
        i, j = query_key_positions(q.shape[-2], k.shape[-2], q.device)
        out = q.new_empty(*q.shape[:-1], v.shape[-1])
        for rows, keys in block_spans(mechanism, q, k):
            out[..., rows, :] = block_attention(
                mechanism, q[..., rows, :], k[..., keys, :], v[..., keys, :], i[rows], j[keys]
            )
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *float_tensors = ctx.saved_tensors
        i, j = query_key_positions(q.shape[-2], k.shape[-2], q.device)
        gradients = [torch.zeros_like(x) for x in (q, k, v, *float_tensors)]
        for rows, keys in block_spans(ctx.mechanism, q, k):
            indices = [(..., rows, slice(None)), (..., keys, slice(None)), (..., keys, slice(None))] + [...] * len(
                float_tensors
            )
            leaves = [
                x[index].detach().requires_grad_() for x, index in zip((q, k, v, *float_tensors), indices, strict=True)
            ]
            with torch.enable_grad():
                mechanism = with_tensors(ctx.mechanism, dict(zip(ctx.parameter_paths, leaves[3:], strict=True)))
                block_out = block_attention(mechanism, leaves[0], leaves[1], leaves[2], i[rows], j[keys])
            if block_out.requires_grad:
                block_gradients = torch.autograd.grad(block_out, leaves, g[..., rows, :], allow_unused=True)
                for accumulated, index, gradient in zip(gradients, indices, block_gradients, strict=True):
                    if gradient is not None:
                        accumulated[index] += gradient
        return None, None, *gradients


def block_weights_function(scorer: BlockScorer) -> Callable[[slice, slice], Weights]:
    """The function from slices of rows and keys to weights. For Sinkhorn it computes the potentials first."""
    normaliser = scorer.mechanism.normaliser
    if normaliser.normalisation_axes:
        f, g = potentials(scorer, normaliser.normalisation_axes)
        return lambda rows, keys: (scorer.scores(rows, keys) + f[..., rows, None] + g[..., None, keys]).exp()

    def block_weights(rows: slice, keys: slice) -> Weights:
        s = scorer.scores(rows, keys)
        return normaliser(s) if s.shape[-1] else s

    return block_weights


def potentials(scorer: BlockScorer, axes: tuple[int, ...]) -> tuple[Float[Tensor, "b h m"], Float[Tensor, "b h n"]]:
    """f and g with weights exp(s_ij + f_i + g_j). Each half-round is one pass over blocks in O(N) memory."""
    all_tokens = slice(0, len(scorer.i))
    f = g = scorer.q.new_zeros(scorer.q.shape[:3])

    def row_pass(span: slice, g: Tensor) -> Tensor:
        return -(scorer.scores(span, all_tokens) + g[..., None, :]).logsumexp(-1)

    def column_pass(span: slice, f: Tensor) -> Tensor:
        return -(scorer.scores(all_tokens, span) + f[..., :, None]).logsumexp(-2)

    row_spans = [
        slice(start, min(start + scorer.rows_per_block, len(scorer.i)))
        for start in range(0, len(scorer.i), scorer.rows_per_block)
    ]
    for axis in axes:
        if axis == -1:
            f = torch.cat([with_recompute(row_pass, span, g) for span in row_spans], -1)
        else:
            g = torch.cat([with_recompute(column_pass, span, f) for span in row_spans], -1)
    return f, g


def with_recompute(function: Callable[..., Tensor], *args: object) -> Tensor:
    """function(*args), recomputed in the backward pass instead of stored."""
    if not torch.is_grad_enabled():
        return function(*args)
    return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
