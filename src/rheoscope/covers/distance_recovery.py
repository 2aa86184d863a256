"""How well images of the tokens preserve their distances, text by text, for the heads and for rotated heads."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from rheoscope.attention.lower.block_size import cache_block_numel
from rheoscope.covers.distortion.analysis import OperatorImage, images_of_operators
from rheoscope.covers.layer_inputs import read_batch_layers
from rheoscope.space.claim import ClaimSample, Measured
from rheoscope.space.cpu_cores import map_on_cores
from rheoscope.space.head import Heads
from rheoscope.space.layer_rotations import layer_rotations
from rheoscope.space.operator import Factored
from rheoscope.space.pair_distances import centred_inner_products, distances
from rheoscope.space.traces import Traces
from rheoscope.statistics.ranks import unit_ranks

MIN_TOKENS = 4
"""Texts with fewer tokens that are not massive have no value."""
Cloud = Float[Tensor, "*t n d"]
ImageClouds = Callable[[Cloud, list[OperatorImage]], Float[Tensor, "*t c n e"]]
"""The clouds that are compared with the tokens, from the tokens and the images of a layer's heads."""


def measure_distances(sample: ClaimSample, image_clouds: ImageClouds) -> Measured:
    """The correlation of distances, mean over images and layers, for every text and every rotation of the heads."""
    view = sample.model.view
    head_images = list(view.map_layers(images_from_cpu))
    rotations = layer_rotations(
        view, sample.draws, Generator().manual_seed(sample.seed), sample.batches[0].points.device
    )

    def measure_batch(traces: Traces) -> Measured:
        is_included = traces.valid_mask()
        layer_values = []
        for layer_input in read_batch_layers(traces, is_included):
            clouds = [x_hat[is_row] for x_hat, is_row in zip(layer_input.x_hat, is_included, strict=True)]
            correlate = partial(
                image_correlations, rotations[layer_input.layer], head_images[layer_input.layer], image_clouds
            )
            texts = map_on_cores(correlate, clouds) if is_included.device.type == "cpu" else map(correlate, clouds)
            layer_values.append(torch.stack(list(texts), -1))
        means = torch.stack(layer_values).mean(0)
        return Measured(means[0], draws=means[1:])

    return sample.over_batches(measure_batch)


@torch.no_grad()
def images_from_cpu(heads: Heads) -> list[OperatorImage]:
    """The images of all heads, decomposed on the CPU: a GPU is slower with matrices of this size."""
    M, F = (Factored(A.left.cpu(), A.right.cpu()) for A in (heads.M(), heads.F()))
    return [image.to(heads.W_Q.device) for image in images_of_operators(M, F)]


@torch.no_grad()
def image_correlations(
    rotations: Float[Tensor, "draw d d"],
    head_images: list[OperatorImage],
    image_clouds: ImageClouds,
    cloud: Float[Tensor, "n d"],
) -> Float[Tensor, " models"]:
    """The mean correlation over images, of the heads themselves and of the heads under every rotation.

    A head applied to x̂Q is the rotated head QM applied to x̂. Rotated heads need no double precision.
    """
    if len(cloud) < MIN_TOKENS:
        return torch.full((1 + len(rotations),), torch.nan, dtype=torch.float64, device=cloud.device)
    cloud = cloud.double() - cloud.double().mean(0)
    cloud_ranks = unit_ranks(pair_distances(cloud[None])[0])
    images = image_clouds(cloud, head_images)
    means = [(unit_ranks(pair_distances(images)) @ cloud_ranks).mean()[None]]
    float32_images = [image.float() for image in head_images]
    for Q in rotations.split(max(1, cache_block_numel(cloud.device) // (len(images) * len(cloud) ** 2))):
        rotated_images = image_clouds(cloud.float() @ Q, float32_images).flatten(0, 1)
        correlations = unit_ranks(pair_distances(rotated_images).double()) @ cloud_ranks
        means.append(correlations.unflatten(0, (-1, len(images))).mean(-1))
    return torch.cat(means)


def pair_distances(clouds: Float[Tensor, "c n e"]) -> Float[Tensor, "c pairs"]:
    """The distances of all pairs of tokens of every cloud."""
    n = clouds.shape[-2]
    i, j = torch.triu_indices(n, n, 1, device=clouds.device)
    return distances(centred_inner_products(clouds)).flatten(-2).index_select(-1, i * n + j)
