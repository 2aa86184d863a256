"""Displacements from head outputs of the forward pass, without computing attention again."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.space.head import Heads
from rheoscope.space.head_contributions import FactoredDisplacements
from rheoscope.space.safe_arithmetic import at_least_float32


def can_subtract_value_bias(heads: Heads) -> bool:
    """Whether the constant part of the values is the same for all tokens in what W_O reads, so that it can be subtracted."""
    is_shared = heads.mechanism.normaliser.sums_to_one and heads.gate is None
    has_no_bias = not heads.mechanism.value.is_identity or (heads.b_V is None and heads.norm.bias is None)
    return heads.heads_norm is None and (is_shared or has_no_bias)


def shared_value_bias(heads: Heads) -> Float[Tensor, "h e"] | None:
    """The constant part of a head's values, and so of its outputs; None if it is zero."""
    assert can_subtract_value_bias(heads), "other outputs are not recorded"
    return heads.value_bias if heads.mechanism.value.is_identity else None


def stacked_value_bias(blocks: Sequence[Heads]) -> Float[Tensor, "layer h e"] | None:
    """The same for layers of one shape, batched to avoid launch overhead."""
    first, all_identity = blocks[0], all(heads.mechanism.value.is_identity for heads in blocks)
    norm_biases = [heads.norm.bias for heads in blocks if heads.norm.bias is not None]
    value_biases = [heads.b_V for heads in blocks if heads.b_V is not None]
    same_shapes = len({heads.W_V.shape for heads in blocks}) == 1 and len(value_biases) in (0, len(blocks))
    if not all_identity or not same_shapes or len(norm_biases) < len(blocks):
        layer_biases = [shared_value_bias(heads) for heads in blocks]
        zero_bias = torch.zeros_like(blocks[0].W_O[..., 0])
        return (
            None
            if not any(x is not None for x in layer_biases)
            else torch.stack([zero_bias if x is None else x for x in layer_biases])
        )
    assert all(map(can_subtract_value_bias, blocks)), "other outputs are not recorded"
    bias = torch.stack(norm_biases)[:, None, None].to(first.W_V)
    stacked = (bias @ torch.stack([heads.W_V for heads in blocks]))[:, :, 0]
    stacked = stacked + torch.stack(value_biases) if value_biases else stacked
    return stacked.repeat_interleave(first.n_heads // stacked.shape[1], 1)


def displacements_from_outputs(heads: Heads, outputs: Float[Tensor, "*b n he"]) -> FactoredDisplacements:
    """Like `heads.factored_displacements`, from the concatenated outputs of the heads."""
    mixed_values, value_bias = outputs.unflatten(-1, (heads.n_heads, -1)).transpose(-3, -2), shared_value_bias(heads)
    if value_bias is None:
        return heads.factor_displacements(mixed_values, at_least_float32(torch.zeros_like(mixed_values[..., :1, :])))
    return heads.factor_displacements(
        mixed_values - value_bias[:, None].to(mixed_values.dtype), at_least_float32(value_bias[:, None])
    )
