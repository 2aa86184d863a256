"""What heads carry, from what they gave in the forward pass: nothing is attended to again."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.space.head import Heads
from rheoscope.space.head_contributions import Carried
from rheoscope.space.safe_arithmetic import exact


def told_by_outputs(heads: Heads) -> bool:
    """Whether what all values have in common is the same in the outputs of all tokens, so that it can be taken away from them."""
    alike = heads.mechanism.normaliser.sums_to_one and heads.gate is None
    return alike or not heads.mechanism.value.identity or (heads.b_V is None and heads.norm.bias is None)


def in_common(heads: Heads) -> Float[Tensor, "h e"] | None:
    """What all values of a head have in common, and so its outputs; None where that is nothing."""
    assert told_by_outputs(heads), "only such outputs are kept"
    return heads.value_bias if heads.mechanism.value.identity else None


def all_in_common(blocks: Sequence[Heads]) -> Float[Tensor, "layer h e"] | None:
    """The same of layers of one shape, together: a GPU waits for each thing that it is asked."""
    first, whole = blocks[0], all(heads.mechanism.value.identity for heads in blocks)
    of_norms = [heads.norm.bias for heads in blocks if heads.norm.bias is not None]
    of_values = [heads.b_V for heads in blocks if heads.b_V is not None]
    alike = len({heads.W_V.shape for heads in blocks}) == 1 and len(of_values) in (0, len(blocks))
    if not whole or not alike or len(of_norms) < len(blocks):
        each = [in_common(heads) for heads in blocks]
        none = torch.zeros_like(blocks[0].W_O[..., 0])
        return None if not any(x is not None for x in each) else torch.stack([none if x is None else x for x in each])
    assert all(map(told_by_outputs, blocks)), "only such outputs are kept"
    bias = torch.stack(of_norms)[:, None, None].to(first.W_V)
    found = (bias @ torch.stack([heads.W_V for heads in blocks]))[:, :, 0]
    found = found + torch.stack(of_values) if of_values else found
    return found.repeat_interleave(first.count // found.shape[1], 1)


def carried_of(heads: Heads, outputs: Float[Tensor, "*b n he"]) -> Carried:
    """As `heads.carried` of the cloud, given what its heads gave, side by side."""
    tokens, common = outputs.unflatten(-1, (heads.count, -1)).transpose(-3, -2), in_common(heads)
    if common is None:
        return heads.as_carried(tokens, exact(torch.zeros_like(tokens[..., :1, :])))
    return heads.as_carried(tokens - common[:, None].to(tokens.dtype), exact(common[:, None]))
