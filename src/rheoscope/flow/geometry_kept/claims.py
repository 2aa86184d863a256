"""The claim that later layers take back what a head wrote."""

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from rheoscope.messages.message import Message
from rheoscope.space.claim import Claim, ClaimPart, ClaimSample, Measured
from rheoscope.space.masked_means import ValidTokens, zero_invalid_rows
from rheoscope.space.safe_arithmetic import at_least_float32, safe_divide
from rheoscope.space.traces import Traces
from rheoscope.statistics.nulls import random_rotations


@torch.no_grad()
def measure(sample: ClaimSample) -> dict[str, Measured]:
    device = sample.batches[0].points.device
    generator = Generator().manual_seed(sample.seed)
    rotations = random_rotations(sample.draws, sample.model.view.width, generator, device=device)

    def measure_batch(traces: Traces) -> Measured:
        valid = traces.valid_tokens()
        shares = torch.stack([erased_shares(traces, layer, valid, rotations) for layer in range(traces.view.layers)])
        mean = shares.mean(0)
        return Measured(mean[0], draws=mean[1:])

    return {"erasure": sample.over_batches(measure_batch)}


def erased_shares(
    traces: Traces, layer: int, valid: ValidTokens, rotations: Float[Tensor, "draw d d"]
) -> Float[Tensor, "models b"]:
    """−Σ⟨Δ_h, x^L − x^after⟩/Σ‖Δ_h‖² of one layer, with both sums over heads and tokens. The first row is the model's.

    The other rows have Δ_h Q in place of Δ_h. Products need only the sum of the updates of all heads: Σ_h⟨Δ_h Q, y⟩ = ⟨Q, (Σ_h Δ_h)ᵀ y⟩.
    """
    updates = traces.factored_displacements(layer).at_least_float32()
    after, end = (at_least_float32(traces.points_at(step)) for step in (traces.mid_steps[layer], -1))
    later, head_sum = (zero_invalid_rows(x, valid).double() for x in (end - after, updates.total() - updates.constants))
    squared_norms = zero_invalid_rows(updates.squared_norms[..., None], valid).double().sum((-3, -2, -1))
    rotation_rows = rotations.flatten(1).double()
    rotated_products = [rotation_rows @ (x.mT @ y).flatten() for x, y in zip(head_sum, later, strict=True)]
    products = torch.cat([(head_sum * later).sum((-2, -1))[None], torch.stack(rotated_products, -1)])
    return -safe_divide(products, squared_norms)


CLAIMS = (
    Claim(
        order=6,
        name="erasure",
        statement=Message("Later layers take back what a head wrote"),
        parts=(
            ClaimPart(
                "erasure",
                Message(
                    "share erased, −Σ⟨Δ_h, x^L − x^after⟩/Σ‖Δ_h‖², with both sums over the heads and tokens of a layer; mean over layers"
                ),
                0.05,
            ),
        ),
        reason=Message("below .05, more than 95 % of the update of a head is still there at the end"),
        null=Message("the same updates, rotated at random"),
        random_models="rotated",
        measure=measure,
        document="A",
    ),
)
