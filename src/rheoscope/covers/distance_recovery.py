"""How well images of the tokens preserve their distances, text by text, for the heads and for rotated heads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from rheoscope.attention.lower.block_size import cache_block_numel
from rheoscope.covers.layer_inputs import read_batch_layer
from rheoscope.covers.operator_images import OperatorImage, images_of_operators
from rheoscope.space.claim import ClaimSample, Measured, measure_or_refuse
from rheoscope.space.cpu_cores import map_on_cores
from rheoscope.space.head import Heads
from rheoscope.space.layer_rotations import layer_rotations
from rheoscope.space.masked_means import centre_points
from rheoscope.space.operator import Factored
from rheoscope.space.pair_distances import centred_inner_products, distance_from_products
from rheoscope.space.traces import Traces
from rheoscope.statistics.ranks import rank_correlations, unit_ranks

MIN_TOKENS = 4
"""Texts with fewer tokens that are not massive have no value."""
TEXTS_PER_GROUP = {"cpu": 1, "cuda": 24}
"""Texts of similar length that are compared together."""
Cloud = Float[Tensor, "*t n d"]
ImageClouds = Callable[[Cloud, list[OperatorImage]], Float[Tensor, "*t c n e"]]
"""The clouds that are compared with the tokens, from the tokens and the images of a layer's heads."""
GroupCorrelations = Callable[[Float[Tensor, "t n d"], Bool[Tensor, "t n"]], Float[Tensor, "models t"]]
"""The correlations of a group of texts, from its clouds and its tokens."""


def measure_distances(sample: ClaimSample, image_clouds: ImageClouds) -> Measured:
    """The correlation of distances, mean over images and layers, for every text and every rotation of the heads.

    The images of a layer are measured on all texts before those of the next layer are read: together they are larger than the
    weights.
    """
    view = sample.model.view
    rotations = layer_rotations(
        view, sample.draws, Generator().manual_seed(sample.seed), sample.batches[0].points.device
    )
    batches = [batch for traces in sample.batches for batch in measure_or_refuse(GroupedBatch.of_traces, traces)]
    accepted, layers = [batch for batch in batches if isinstance(batch, GroupedBatch)], []
    for layer, head_images in enumerate(view.map_layers(images_from_cpu)):
        correlations = partial(image_correlations, rotations[layer], head_images, image_clouds)
        layers.append([batch.measure_layer(layer, correlations) for batch in accepted])
        if sample.progress is not None:
            sample.progress(layer + 1, view.layers)
    means = (batch.mean_over_layers(values) for batch, values in zip(accepted, zip(*layers, strict=True), strict=True))
    return Measured.concatenate([next(means) if isinstance(batch, GroupedBatch) else batch for batch in batches])


@dataclass(frozen=True, eq=False)
class TextGroup:
    """Texts of similar length, whose included tokens come first."""

    texts: Int[Tensor, " t"]
    tokens: Int[Tensor, "t n"]
    is_token: Bool[Tensor, "t n"]

    def take(self, clouds: Float[Tensor, "b all d"]) -> Float[Tensor, "t n d"]:
        """The clouds of these texts."""
        return clouds[self.texts[:, None], self.tokens]


@dataclass(frozen=True, eq=False)
class GroupedBatch:
    """A batch of texts with its groups."""

    traces: Traces
    is_included: Bool[Tensor, "b n"]
    groups: list[TextGroup]

    @staticmethod
    def of_traces(traces: Traces) -> "GroupedBatch":
        """The batch of these traces. Raises for a text without tokens that are not massive."""
        is_included = traces.valid_mask()
        return GroupedBatch(traces, is_included, group_texts(is_included))

    def measure_layer(self, layer: int, correlations: GroupCorrelations) -> Float[Tensor, "models t"]:
        """The correlations of a layer, group by group."""
        x_hat = read_batch_layer(self.traces, layer, self.is_included).x_hat

        def of_group(group: TextGroup) -> Float[Tensor, "models t"]:
            return correlations(group.take(x_hat), group.is_token)

        values = map_on_cores(of_group, self.groups) if x_hat.device.type == "cpu" else map(of_group, self.groups)
        return torch.cat(list(values), -1)

    def mean_over_layers(self, layers: Sequence[Float[Tensor, "models t"]]) -> Measured:
        """The means of all layers, in the order of the texts. The first model is the sample's."""
        means = torch.stack(list(layers)).mean(0)[:, torch.cat([group.texts for group in self.groups]).argsort()]
        return Measured(means[0], draws=means[1:])


def group_texts(is_included: Bool[Tensor, "b n"]) -> list[TextGroup]:
    """The texts in groups, sorted by length: single texts on the CPU, many on a GPU, which waits for the start of each operation."""
    counts = is_included.sum(-1).cpu()
    tokens = is_included.int().argsort(dim=-1, descending=True, stable=True)
    places = torch.arange(is_included.shape[-1], device=is_included.device)
    groups = []
    for chunk in counts.argsort(stable=True).split(TEXTS_PER_GROUP.get(is_included.device.type, 1)):
        n, texts = int(counts[chunk].max()), chunk.to(is_included.device)
        groups.append(TextGroup(texts, tokens[texts, :n], places[:n] < counts[chunk].to(places)[:, None]))
    return groups


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
    clouds: Float[Tensor, "t n d"],
    is_token: Bool[Tensor, "t n"],
) -> Float[Tensor, "models t"]:
    """The mean correlation over images, of the heads themselves and of the heads under every rotation, for every text.

    A head applied to x̂Q is the rotated head QM applied to x̂. Rotated heads need no double precision.
    """
    n, is_long = clouds.shape[-2], is_token.sum(-1) >= MIN_TOKENS
    if n < MIN_TOKENS:
        return torch.full((1 + len(rotations), len(clouds)), torch.nan, dtype=torch.float64, device=clouds.device)
    clouds = centre_points(clouds.double(), is_token)
    i, j = torch.triu_indices(n, n, 1, device=clouds.device)
    usable = is_token[:, i] & is_token[:, j]
    cloud_ranks = unit_ranks(pair_distances(clouds), usable)

    def correlations(images: Float[Tensor, "*t n e"]) -> Float[Tensor, "*t"]:
        if images.device.type == "cpu" and images.dtype == torch.float32 and bool(usable.all()) and len(usable) == 1:
            return rank_correlations(pair_distances(images), cloud_ranks[0])
        inner_shape = (len(usable), *(1 for _ in images.shape[1:-2]), -1)
        ranks = unit_ranks(pair_distances(images).double(), usable.reshape(inner_shape))
        return (ranks * cloud_ranks.reshape(inner_shape)).sum(-1)

    images = image_clouds(clouds, head_images)
    means = [correlations(images).mean(-1)[None]]
    float32_images = [image.float() for image in head_images]
    for Q in rotations.split(max(1, cache_block_numel(clouds.device) // (images[..., 0].numel() * n))):
        rotated_images = image_clouds(clouds.float()[:, None] @ Q, float32_images)
        means.append(correlations(rotated_images).mean(-1).mT)
    return torch.where(is_long, torch.cat(means), torch.nan)


def pair_distances(clouds: Float[Tensor, "*t n e"]) -> Float[Tensor, "*t pairs"]:
    """The distances of all pairs of tokens of every cloud."""
    n, inner = clouds.shape[-2], centred_inner_products(clouds)
    i, j = torch.triu_indices(n, n, 1, device=clouds.device)
    squares = inner.diagonal(dim1=-2, dim2=-1)
    squared_sum = (squares[..., :, None] + squares[..., None, :]).flatten(-2)
    products = inner.flatten(-2)
    return distance_from_products(*(x.index_select(-1, i * n + j) for x in (squared_sum, products)))
