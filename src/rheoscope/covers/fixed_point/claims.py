"""The claim that iterating a layer brings directions to rest."""

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.fixed_point.analysis import angles, directions
from rheoscope.covers.fixed_point.layer_map import batch_layer_map
from rheoscope.messages.message import Message
from rheoscope.space.claim import Claim, ClaimPart, ClaimSample, Measured
from rheoscope.space.masked_means import ValidTokens, masked_mean
from rheoscope.space.traces import Traces

APPLICATIONS = 8
"""K: how often the layer is applied."""


def measure(sample: ClaimSample) -> dict[str, Measured]:
    return {"rest": sample.over_batches(lambda traces: Measured(rest_rates(traces)))}


@torch.no_grad()
def rest_rates(traces: Traces) -> Float[Tensor, " text"]:
    """log(θ_1/θ_K)/(K−1) of every text, mean over the layers that rotate something."""
    valid = traces.valid_tokens()
    first, last = torch.stack([_first_and_last_angle(traces, layer, valid) for layer in range(traces.view.layers)], 1)
    rates = (first / last).log() / (APPLICATIONS - 1)
    is_at_rest = (first == 0) & (last == 0)
    return torch.where(is_at_rest, 0, rates).sum(0) / (~is_at_rest).sum(0)


def _first_and_last_angle(traces: Traces, layer: int, valid: ValidTokens) -> Float[Tensor, "2 text"]:
    """θ_1 and θ_K: the mean angle by which the first and the last application rotate the tokens that are not massive."""
    T, x = batch_layer_map(traces, layer), traces.layer_input(layer)
    mean_angles = []
    for application in range(1, APPLICATIONS + 1):
        image = T(x)
        if application in (1, APPLICATIONS):
            rotation = angles(directions(image.double()), directions(x.double()))
            mean_angles.append(masked_mean(rotation, valid))
        x = image
    return torch.stack(mean_angles)


CLAIMS = (
    Claim(
        order=7,
        name="rest",
        statement=Message("Applying a layer again and again brings the directions of tokens to rest"),
        parts=(
            ClaimPart(
                "rest",
                Message(
                    "log(θ₁/θ₈)/7, where θₖ is the mean angle by which application k of a layer rotates x/‖x‖; mean over layers"
                ),
                0.1,
            ),
        ),
        reason=Message("at .1, every application rotates tokens by 10 % less than the one before"),
        null=Message(
            "none within a text; the claim must exceed untrained models, whose growing norms shrink angles too"
        ),
        random_models="untrained",
        measure=measure,
        document="A",
    ),
)
