"""Statistics of attention weights in O(N) memory: entropy, sink weight, largest weight, distance and column sums."""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.call_checks import check_call, check_finite
from rheoscope.attention.definition import Definition, MaskLike
from rheoscope.attention.feature_maps import Identity
from rheoscope.attention.lower.blocks import Block, iterate_blocks
from rheoscope.attention.lower.kernels import triton_lowerings as kernels
from rheoscope.attention.lower.plan import MAX_CHOICES, CallSignature, call_signature
from rheoscope.attention.mask import Padding
from rheoscope.attention.parameters import Structure
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

REFUSAL_CACHE: dict[tuple[Structure, CallSignature], str] = {}
PerRow = Float[Tensor, "b h m"]


def entropy(block: Block) -> PerRow:
    """-sum_j p_j log p_j in nats, where p is the row divided by its sum (0 for an empty row)."""
    p = block.weights / block.weights.sum(-1, keepdim=True).clamp(min=torch.finfo(block.weights.dtype).tiny)
    return torch.special.entr(p).sum(-1)


def first_token_weight(block: Block) -> PerRow:
    """The weight on the first token, the usual sink."""
    return block.weights[..., 0] if block.keys.start == 0 and len(block.j) else block.weights.sum(-1) * 0


def largest_weight(block: Block) -> PerRow:
    """The largest weight of the row."""
    return block.weights.amax(-1) if len(block.j) else block.weights.sum(-1)


def mean_distance(block: Block) -> PerRow:
    """sum_j alpha_ij |i - j| / sum_j alpha_ij, in tokens."""
    distances = (block.i[:, None] - block.j).abs().to(block.weights.dtype)
    return (block.weights * distances).sum(-1) / block.weights.sum(-1).clamp(min=torch.finfo(distances.dtype).tiny)


ROW_STATISTICS = {"entropy": entropy, "first": first_token_weight, "top": largest_weight, "distance": mean_distance}


@torch.no_grad()
def weight_statistics(
    mechanism: Definition,
    q: Tensor,
    k: Tensor,
    mask: MaskLike = None,
    of: dict[str, Callable[[Block], Tensor]] | None = None,
    lengths: Int[Tensor, " b"] | None = None,
) -> dict[str, Tensor]:
    """Entropy, sink weight, largest weight, mean distance and column sums of the weights, without storing them.

    **Question** Where does a head attend, how sharply and how far, on texts whose N x N map does not fit into memory?

    **Returns** for each row (b, h, m) the `entropy` (nats), `first` (weight on the first token), `top` (largest weight)
    and `distance` (mean |i - j| in tokens); for each key (b, h, n) the column sums `received`.

    **Settings** `of` adds statistics by name: functions from a `Block` (weights of some rows over some keys, with their
    positions) to (b, h, rows, …), concatenated along the rows. `lengths` are the lengths of texts that are padded on the
    right. Tokens beyond them count neither as queries nor as keys, and their statistics are 0.

    **Laws** The result equals the same statistics of `mechanism.weights`. On a GPU, softmax of dot products takes two
    passes of a kernel.

    **See also** `mechanism.weights` (the map itself), `attention_gradients` (its gradients).

    >>> import torch, rheoscope as rs
    >>> q = torch.zeros(1, 1, 4, 8)
    >>> rs.weight_statistics(rs.mechanism("scaled_dot"), q, q, mask="causal")["first"]
    tensor([[[1.0000, 0.5000, 0.3333, 0.2500]]])
    """
    check_finite(q=q, k=k)
    return unchecked_statistics(mechanism.with_mask(mask), q, k, of, lengths)


@torch.no_grad()
def unchecked_statistics(
    mechanism: Definition,
    q: Tensor,
    k: Tensor,
    extra_statistics: dict[str, Callable[[Block], Tensor]] | None = None,
    lengths: Int[Tensor, " b"] | None = None,
) -> dict[str, Tensor]:
    """`weight_statistics` without the check for finite inputs, for layers inside a model."""
    mechanism = mechanism if mechanism.value.is_identity else replace(mechanism, value=Identity())
    if kernel_refusal(mechanism, q, k) or extra_statistics:
        return blockwise_statistics(mechanism, q, k, ROW_STATISTICS | (extra_statistics or {}), lengths)
    return kernels.kernel_statistics(mechanism, q, k, lengths)


def kernel_refusal(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    """Why a call runs block by block, or \"\" if the kernel runs it. The answer is cached for calls of the same signature."""
    key = mechanism.structure, call_signature(q, k, k)
    if key not in REFUSAL_CACHE:
        check_call(mechanism, q, k, k)
        if mechanism.domain.has_negative_weights:
            raise RheoscopeError(
                Message(
                    "the weights of {normaliser} can be negative, so they have no entropy",
                    normaliser=type(mechanism.normaliser).__name__,
                ),
                Advice("rs.weight_statistics(rs.mechanism('scaled_dot'), q, k)"),
            )
        if len(REFUSAL_CACHE) >= MAX_CHOICES:
            REFUSAL_CACHE.clear()
        return REFUSAL_CACHE.setdefault(key, kernels.statistics_refusal(mechanism, q, k))
    return REFUSAL_CACHE[key]


def blockwise_statistics(
    mechanism: Definition,
    q: Tensor,
    k: Tensor,
    row_functions: dict[str, Callable[[Block], Tensor]],
    lengths: Int[Tensor, " b"] | None,
) -> dict[str, Tensor]:
    """The statistics for any normaliser, block by block."""
    m, n, results = q.shape[-2], k.shape[-2], dict[str, Tensor]()
    if lengths is not None:
        is_token = torch.arange(n, device=q.device) < lengths[:, None]
        mechanism = mechanism.with_mask(Padding(is_token))
    compute_dtype = torch.promote_types(q.dtype, torch.float32)
    received = torch.zeros(*q.shape[:2], n, dtype=compute_dtype, device=q.device)
    for block in iterate_blocks(mechanism, q, k):
        if lengths is not None:
            block = replace(block, weights=block.weights * (block.i < lengths[:, None])[:, None, :, None])
        for name, row_function in row_functions.items():
            block_result = row_function(block)
            if name not in results:
                results[name] = block_result.new_empty(*block_result.shape[:2], m, *block_result.shape[3:])
            results[name][:, :, block.rows] = block_result
        received[..., block.keys] += block.weights.sum(-2)
    return results | {"received": received}
