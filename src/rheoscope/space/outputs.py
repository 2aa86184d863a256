"""What heads carry, from what they gave in the forward pass: nothing is attended to again."""

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.space.carried import Carried
from rheoscope.space.head import Heads
from rheoscope.space.share import exact


def told_by_outputs(heads: Heads) -> bool:
    """Whether what all values have in common is the same in the outputs of all tokens, so that it can be taken away from them."""
    alike = heads.mechanism.normaliser.sums_to_one and heads.gate is None
    return alike or not heads.mechanism.value.identity or (heads.b_V is None and heads.norm.bias is None)


def in_common(heads: Heads) -> Float[Tensor, "h e"] | None:
    """What all values of a head have in common, and so its outputs; None where that is nothing."""
    assert told_by_outputs(heads), "only such outputs are kept"
    return heads.value_bias if heads.mechanism.value.identity else None


def carried_of(heads: Heads, outputs: Float[Tensor, "*b n he"]) -> Carried:
    """As `heads.carried` of the cloud, given what its heads gave, side by side."""
    tokens, common = outputs.unflatten(-1, (heads.count, -1)).transpose(-3, -2), in_common(heads)
    if common is None:
        return heads.as_carried(tokens, exact(torch.zeros_like(tokens[..., :1, :])))
    return heads.as_carried(tokens - common[:, None].to(tokens.dtype), exact(common[:, None]))
