"""The claim that the projections of heads deform distances."""

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.distance_recovery import measure_distances
from rheoscope.covers.distortion.analysis import stack_images
from rheoscope.covers.operator_images import OperatorImage
from rheoscope.messages.message import Message
from rheoscope.space.claim import Claim, ClaimPart, ClaimSample, Measured


def separate_images(cloud: Float[Tensor, "*t n d"], head_images: list[OperatorImage]) -> Float[Tensor, "*t c n e"]:
    """Every image of every head by itself."""
    return stack_images([image.apply(cloud) for image in head_images]).flatten(-4, -3)


@torch.no_grad()
def measure(sample: ClaimSample) -> dict[str, Measured]:
    preserved = measure_distances(sample, separate_images)
    assert preserved.draws is not None, "rotated heads are drawn"
    return {"deformation": Measured(-preserved.observed, draws=-preserved.draws)}


CLAIMS = (
    Claim(
        order=2,
        name="deformation",
        statement=Message("Projections deform distances more than random rotations with the same singular values"),
        parts=(
            ClaimPart(
                "deformation",
                Message(
                    "−ρ, with ρ the rank correlation of pairwise distances of x̂ and of x̂M, x̂Mᵀ or x̂F; mean over images and heads. "
                    "Without the sign it is the preserved correlation"
                ),
                0.05,
                bounds=(-2.0, 2.0),
            ),
        ),
        reason=Message("a correlation lower by .05 puts 1.7 % more pairs of distances in the wrong order"),
        null=Message("the same heads, rotated at random"),
        random_models="rotated",
        measure=measure,
        document="A",
    ),
)
