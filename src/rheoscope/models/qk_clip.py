"""QK-clip: after a step, the W_Q and W_K of a head shrink if its largest score exceeded a limit (arXiv:2507.20534).

    γ_h = min(1, limit / max_ij s_ij)      over all pairs of the step's batch that may attend
    W_Q ← √γ_h W_Q,  W_K ← √γ_h W_K        if W_Q = W_K, the only matrix shrinks once

Scores are bilinear in the two, so those of the same batch would not exceed the limit. Forward and backward passes are unchanged. The
scores are computed for this alone, because fused attention does not store them. The moments of the optimiser are kept.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rheoscope.attention.definition import query_key_positions
from rheoscope.attention.mask import Mask
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.position import Position
from rheoscope.models.projection import Projection
from rheoscope.space.safe_arithmetic import at_least_float32

PerModelAndHead = Float[Tensor, "models h"]


@torch.no_grad()
def largest_scores(
    mechanism: Mechanism,
    q: Float[Tensor, "b h n k"],
    k: Float[Tensor, "b h n k"],
    token_mask: Mask | None,
    position: Position | None,
    n_models: int,
) -> PerModelAndHead:
    """The largest score of every head over the batch of every model, among pairs that may attend."""
    i, j = query_key_positions(q.shape[-2], k.shape[-2], q.device)
    scores = mechanism.score(q.detach(), k.detach())
    bias = None if position is None else position.bias(i, j)
    scores = scores if bias is None else scores + bias.to(scores.dtype)
    allowed = mechanism.mask(i, j) if token_mask is None else mechanism.mask(i, j) & token_mask(i, j)
    row_maxima = scores.masked_fill(~allowed, -torch.inf).amax((-2, -1))
    return row_maxima.unflatten(0, (n_models, -1)).amax(1)


@torch.no_grad()
def clip_queries_keys(model: nn.Module, limit: float) -> None:
    """Shrink W_Q and W_K of every head whose largest score of this step exceeded the limit."""
    attentions: list[Any] = [m for m in model.modules() if getattr(m, "score_maxima", None) is not None]
    for attention in attentions:
        factors = (limit / at_least_float32(attention.score_maxima).clamp(min=limit)).sqrt()
        weight, bias = attention.read.weight, attention.read.bias
        row_factors = shrinking_rows(attention.projection, factors)
        row_factors = row_factors if weight.ndim == 3 else row_factors[0]
        weight.mul_(row_factors[..., None])
        if bias is not None:
            bias.mul_(row_factors)
        attention.score_maxima = None


def shrinking_rows(projection: Projection, head_factors: PerModelAndHead) -> Float[Tensor, "models rows"]:
    """The factor of every row of the input projection: that of its head for queries and keys, 1 for all others."""
    blocks = [
        head_factors.repeat_interleave(width, 1)
        if name in ("q", "k")
        else head_factors.new_ones(len(head_factors), count * width)
        for name, (count, width) in projection.layout.items()
    ]
    return torch.cat(blocks, 1)
