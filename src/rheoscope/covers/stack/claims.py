"""The claim that the heads of a layer together recover the distances of its tokens."""

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.distance_recovery import measure_distances
from rheoscope.covers.distortion.analysis import stack_images
from rheoscope.covers.operator_images import OperatorImage
from rheoscope.messages.message import Message
from rheoscope.space.claim import Claim, ClaimPart, ClaimSample, Measured


def concatenated_images(cloud: Float[Tensor, "*t n d"], head_images: list[OperatorImage]) -> Float[Tensor, "*t c n e"]:
    """The images of all heads side by side, one cloud per kind of image."""
    return stack_images([image.apply(cloud).transpose(-3, -2).flatten(-2) for image in head_images])


@torch.no_grad()
def measure(sample: ClaimSample) -> dict[str, Measured]:
    return {"recovery": measure_distances(sample, concatenated_images)}


CLAIMS = (
    Claim(
        order=4,
        name="recovery",
        statement=Message("The heads of a layer together recover the distances of its tokens"),
        parts=(
            ClaimPart(
                "recovery",
                Message(
                    "rank correlation of pairwise distances of x̂ and of the concatenated images of all heads; mean over x̂M, x̂Mᵀ "
                    "and x̂F, and over layers"
                ),
                0.1,
                bounds=(-2.0, 2.0),
            ),
        ),
        reason=Message("a correlation higher by .1 puts 3.3 % more pairs of distances in the right order"),
        null=Message("the heads of each layer under one common random rotation"),
        random_models="rotated",
        measure=measure,
        document="A",
    ),
)
