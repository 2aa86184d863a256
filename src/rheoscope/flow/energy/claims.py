"""The claim that the updates of heads follow the gradient of their energy."""

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from rheoscope.flow.energy.head_updates import HeadUpdates, head_updates, padding_mask
from rheoscope.messages.message import Message
from rheoscope.space.claim import Claim, ClaimPart, ClaimSample, Measured
from rheoscope.space.head import matmul_per_head
from rheoscope.space.head_contributions import split_constant_values
from rheoscope.space.layer_rotations import layer_rotations
from rheoscope.space.masked_means import ValidTokens, zero_invalid_rows
from rheoscope.space.safe_arithmetic import at_least_float32, safe_divide
from rheoscope.space.traces import Traces


@torch.no_grad()
def measure(sample: ClaimSample) -> dict[str, Measured]:
    view, device = sample.model.view, sample.batches[0].points.device
    rotations = layer_rotations(view, sample.draws, Generator().manual_seed(sample.seed), device)

    def measure_batch(traces: Traces) -> Measured:
        valid = traces.valid_tokens()
        cosines = [layer_cosines(traces, layer, valid, Q) for layer, Q in enumerate(rotations)]
        mean = torch.cat(cosines, -1).double().mean(-1)
        return Measured(mean[0], draws=mean[1:])

    return {"gradient": sample.over_batches(measure_batch)}


def layer_cosines(
    traces: Traces, layer: int, valid: ValidTokens, rotations: Float[Tensor, "draw d d"]
) -> Float[Tensor, "models b h"]:
    """cos(Δ_h, ∇Λ) over the tokens of a text, for the heads of a layer. The first row is the model's.

    The other rows have QF in place of F: the head mixes the values of x̂Q with its own weights.
    """
    heads, updates = traces.view.layer_heads[layer], head_updates(traces, layer)
    x = traces.view.to_model_precision(traces.layer_input(layer))
    mechanism = heads.mechanism.with_mask(padding_mask(traces, layer))
    q, k, v = heads.qkv(x)
    constants = split_constant_values(mechanism, q, k, v, heads.value_bias)[1]
    value_map = heads.norm.fold(at_least_float32(heads.W_V))
    rows = [head_cosines(updates, updates.mixed_values, valid)]
    for Q in rotations:
        values = matmul_per_head(updates.x_hat, Q.to(value_map) @ value_map).to(v.dtype)
        attended = mechanism.attend(q, k, values)
        outputs = attended + constants.to(attended)
        mixed_values = heads.apply_gate(attended, x, all_outputs=outputs)
        if heads.output_norm is not None:  # it scales the sum of all heads
            gated_constants = (
                heads.apply_gate(constants.expand_as(mixed_values), x, all_outputs=outputs)
                if heads.scales_outputs
                else constants
            )
            mixed_values = heads.factor_displacements(mixed_values, gated_constants).mixed_values
        rows.append(head_cosines(updates, at_least_float32(mixed_values), valid))
    return torch.stack(rows)


def head_cosines(
    updates: HeadUpdates, mixed_values: Float[Tensor, "b h n e"], valid: ValidTokens
) -> Float[Tensor, "b h"]:
    """The cosine of every head's update and gradient, as one vector of all tokens each, from e x e matrices."""
    mixed_values, gradient = (zero_invalid_rows(x, valid) for x in (mixed_values, updates.query_gradient))
    inner = (mixed_values.mT @ gradient * updates.products.output_to_query).sum((-2, -1))
    squared_norms = [
        (x.mT @ x * gram).sum((-2, -1)).clamp(min=0)
        for x, gram in ((mixed_values, updates.products.output_gram), (gradient, updates.products.query_gram))
    ]
    return safe_divide(inner, squared_norms[0].sqrt() * squared_norms[1].sqrt())


CLAIMS = (
    Claim(
        order=8,
        name="gradient",
        statement=Message("The updates of heads follow the gradient of their energy"),
        parts=(
            ClaimPart(
                "gradient",
                Message("cos(Δ_h, ∇Λ) over all tokens of a text, mean over heads"),
                0.05,
                bounds=(-2.0, 2.0),
            ),
        ),
        reason=Message("at a cosine of .05, the gradient accounts for .25 % of the squared length of the updates"),
        null=Message("random F with the same singular values"),
        random_models="rotated",
        measure=measure,
        document="C",
    ),
)
