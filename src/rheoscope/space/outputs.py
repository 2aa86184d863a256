"""What heads carry, from what they gave in the forward pass: nothing is attended to again."""

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.space.carried import Carried
from rheoscope.space.head import Heads
from rheoscope.space.share import exact


def told_by_outputs(heads: Heads) -> bool:
    """Whether what all values have in common is the same in the outputs of all tokens, so that it can be taken away from them."""
    nothing = heads.b_V is None and heads.norm.bias is None
    return nothing or not heads.mechanism.value.identity or heads.mechanism.normaliser.sums_to_one


def carried_of(heads: Heads, outputs: Float[Tensor, "*b n he"]) -> Carried:
    """As `heads.carried` of the cloud, given what its heads gave, side by side."""
    assert told_by_outputs(heads), "only such outputs are kept"
    tokens = outputs.unflatten(-1, (heads.count, -1)).transpose(-3, -2)
    common = heads.value_bias if heads.mechanism.value.identity else None
    if common is None:
        return heads.as_carried(tokens, exact(torch.zeros_like(tokens[..., :1, :])))
    return heads.as_carried(tokens - common[:, None].to(tokens.dtype), exact(common[:, None]))
