"""The claim that the directions in use shrink from the embedding to the last layer."""

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.flow.cloud import points_at_grain
from rheoscope.flow.clusters.analysis import MIN_TOKENS
from rheoscope.messages.message import Message
from rheoscope.space.claim import Claim, ClaimPart, ClaimSample, Measured
from rheoscope.space.masked_means import ValidTokens, centre_points
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.traces import Traces


def measure(sample: ClaimSample) -> dict[str, Measured]:
    return {"directions": sample.over_batches(lambda traces: Measured(log_rank_ratios(traces)))}


@torch.no_grad()
def log_rank_ratios(traces: Traces) -> Float[Tensor, " text"]:
    """log(effective rank of the embedding / effective rank of the last layer) of every text."""
    valid = traces.valid_tokens()
    first, *_, last = points_at_grain(traces, "layer")
    entropies = [spectral_entropy(at_least_float32(traces.points_at(index)).double(), valid) for index in (first, last)]
    has_value = traces.valid_mask().sum(-1) >= MIN_TOKENS
    return torch.where(has_value, entropies[0] - entropies[1], torch.nan)


def spectral_entropy(x: Float[Tensor, "b n d"], valid: ValidTokens) -> Float[Tensor, " b"]:
    """The logarithm of the effective rank of every cloud; NaN if all its points are equal.

    Tokens that are left out are rows of 0, which add eigenvalues of 0 and no entropy.
    """
    centred = centre_points(x, valid)
    table = centred @ centred.mT if centred.shape[-2] <= centred.shape[-1] else centred.mT @ centred
    eigenvalues = torch.linalg.eigvalsh(table).clamp(min=0)
    return torch.special.entr(eigenvalues / eigenvalues.sum(-1, keepdim=True)).sum(-1)


CLAIMS = (
    Claim(
        order=11,
        name="directions",
        statement=Message("From the embedding to the last layer, the cloud comes to use fewer directions"),
        parts=(
            ClaimPart(
                "directions",
                Message(
                    "logarithm of the effective rank of the centred embedding divided by that of the centred last layer"
                ),
                0.1,
            ),
        ),
        reason=Message("at .1, the last layer uses 10 % fewer directions than the embedding"),
        null=Message("none within a text; the claim must exceed untrained models"),
        random_models="untrained",
        measure=measure,
        document="C",
    ),
)
