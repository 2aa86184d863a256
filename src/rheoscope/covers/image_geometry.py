"""How well images preserve the geometry of clouds, for many texts at once.

The scores are those of `cloud_comparison.PRESERVATION_FIELDS`. Tokens keep their positions. Padding and massive tokens are
in no pair and in no neighbourhood. Long texts on a GPU use float32 distances and as few passes over them as possible.
"""

from dataclasses import dataclass
from importlib.util import find_spec

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.attention.lower.block_size import cache_block_numel
from rheoscope.space.masked_means import centre_points
from rheoscope.space.safe_arithmetic import safe_divide
from rheoscope.statistics.ranks import unit_ranks

HAS_TRITON = find_spec("triton") is not None
MIN_KERNEL_TOKENS = 256
"""The number of tokens from which on the GPU kernels are faster."""
Clouds = Float[Tensor, "b c n e"]


@dataclass(frozen=True, eq=False)
class BatchGeometry:
    """Centred clouds with all pairwise distances, their ranks and the order of neighbours.

    `nearest_tokens` lists the tokens of a row, nearest first, where ties go to the earlier token. `neighbour_ranks[i, j]` is
    the number of tokens closer to i than j. `pair_ranks` are the ranks of the distances of pairs i < j, scaled to length 1.
    """

    x: Float[Tensor, "b c n e"]
    distances: Float[Tensor, "b c n n"]
    pair_distances: Float[Tensor, "b c p"]
    pair_ranks: Float[Tensor, "b c p"]
    nearest_tokens: Int[Tensor, "b c n n"]
    neighbour_ranks: Int[Tensor, "b c n n"]


def batch_preservation(
    cloud: Float[Tensor, "b n d"], is_included: Bool[Tensor, "b n"], images: Clouds, n_neighbours: int
) -> Float[Tensor, "b c 6"]:
    """How well each image preserves its cloud, for many clouds: the scores of `PRESERVATION_FIELDS`."""
    (b, n), c = is_included.shape, images.shape[1]
    cache_size, text_chunks = cache_block_numel(cloud.device), []
    compare = triton_preservation if cloud.is_cuda and HAS_TRITON and n >= MIN_KERNEL_TOKENS else torch_preservation
    for text_indices in torch.arange(b).split(max(1, cache_size // (c * n * n))):
        text_slice = slice(int(text_indices[0]), int(text_indices[-1]) + 1)
        reference = batch_geometry(cloud[text_slice, None], is_included[text_slice])
        image_chunks = images[text_slice].split(max(1, cache_size // (len(text_indices) * n * n)), 1)
        text_chunks.append(
            torch.cat(
                [
                    compare(reference, image_chunk, is_included[text_slice], n_neighbours)
                    for image_chunk in image_chunks
                ],
                1,
            )
        )
    return torch.cat(text_chunks)


def centred_distances(x: Clouds, is_included: Bool[Tensor, "b n"]) -> tuple[Clouds, Float[Tensor, "b c n n"]]:
    """Centred clouds and their distances, from a single matrix product in float64.

    **Formula** ‖x_i − x_j‖² = ⟨(−2x_i, ‖x_i‖², 1), (x_j, 1, ‖x_j‖²)⟩.
    """
    shape = x.shape[:2]
    x = centre_points(x.double().flatten(0, 1), is_included.repeat_interleave(shape[1], 0))
    squared_length, ones = x.square().sum(-1, keepdim=True), torch.ones_like(x[..., :1])
    squared_distances = torch.cat([-2 * x, squared_length, ones], -1) @ torch.cat([x, ones, squared_length], -1).mT
    squared_distances = squared_distances.to(
        torch.float64 if x.device.type == "cpu" or x.shape[-2] < MIN_KERNEL_TOKENS else torch.float32
    )
    rounding = (900 * torch.finfo(x.dtype).eps * squared_length.amax(-2, keepdim=True)).to(squared_distances.dtype)
    distances = torch.where(squared_distances > rounding, squared_distances, 0).sqrt_()
    return x.unflatten(0, shape), distances.unflatten(0, shape)


def batch_geometry(x: Clouds, is_included: Bool[Tensor, "b n"]) -> BatchGeometry:
    """The geometry of many clouds."""
    n = x.shape[-2]
    x, distances = centred_distances(x, is_included)
    pair_distances = distances.flatten(-2).index_select(-1, _upper_indices(n, x.device))
    nearest_tokens = (
        distances.masked_fill(~_neighbour_candidates(is_included)[:, None], torch.inf).sort(dim=-1, stable=True).indices
    )
    ranks = torch.arange(n, dtype=torch.int32, device=x.device).expand_as(nearest_tokens)
    neighbour_ranks = torch.empty(nearest_tokens.shape, dtype=torch.int32, device=x.device).scatter_(
        -1, nearest_tokens, ranks
    )
    return BatchGeometry(
        x,
        distances,
        pair_distances,
        unit_ranks(pair_distances, _usable_pairs(is_included)[:, None]),
        nearest_tokens,
        neighbour_ranks,
    )


def torch_preservation(
    reference: BatchGeometry, images: Clouds, is_included: Bool[Tensor, "b n"], k: int
) -> Float[Tensor, "b c 6"]:
    """How well images preserve their cloud: the scores of `PRESERVATION_FIELDS`, in that order."""
    image, is_usable = batch_geometry(images, is_included), _usable_pairs(is_included)
    cloud_ranks = reference.neighbour_ranks.expand_as(image.neighbour_ranks).gather(-1, image.nearest_tokens[..., :k])
    image_ranks = image.neighbour_ranks.gather(
        -1, reference.nearest_tokens[..., :k].expand(*image.nearest_tokens.shape[:-1], k)
    )
    row_mask = is_included[:, None, :, None]
    intruder_excess, lost_excess = (
        torch.where(row_mask, (ranks - k + 1).clamp(min=0), 0).sum((-2, -1)) for ranks in (cloud_ranks, image_ranks)
    )
    n_shared = torch.where(row_mask, cloud_ranks < k, False).sum((-2, -1))
    rsa = (reference.pair_ranks * image.pair_ranks).sum(-1, dtype=torch.float64)
    return _preservation_scores(
        stretch_ratio(reference.pair_distances, image.pair_distances, is_usable),
        n_shared,
        intruder_excess,
        lost_excess,
        rsa,
        linear_cka(reference.x, image.x),
        is_included,
        k,
    )


def triton_preservation(
    reference: BatchGeometry, images: Clouds, is_included: Bool[Tensor, "b n"], k: int
) -> Float[Tensor, "b c 6"]:
    """The scores of `torch_preservation`, in three passes over the distances of the images."""
    from rheoscope.covers.kernels.pairs import pair_statistics  # needs Triton

    (b, n), (x, distances) = is_included.shape, centred_distances(images, is_included)
    ranks = torch.zeros(b, n * n, device=x.device)
    ranks[:, _upper_indices(n, x.device)] = reference.pair_ranks[:, 0].float()
    nearest_tokens = reference.nearest_tokens[:, 0, :, :k].int().contiguous()
    statistics = pair_statistics(
        distances,
        reference.distances[:, 0],
        is_included,
        reference.neighbour_ranks[:, 0],
        nearest_tokens,
        ranks.unflatten(1, (n, n)),
    )
    return _preservation_scores(
        statistics.stretch_ratio,
        statistics.n_shared,
        statistics.intruder_excess,
        statistics.lost_excess,
        statistics.rsa,
        linear_cka(reference.x, x),
        is_included,
        k,
    )


def _preservation_scores(
    stretch_ratios: Tensor,
    n_shared: Tensor,
    intruder_excess: Tensor,
    lost_excess: Tensor,
    rsa: Tensor,
    cka: Tensor,
    is_included: Bool[Tensor, "b n"],
    k: int,
) -> Float[Tensor, "b c 6"]:
    n_included = is_included.sum(-1)[:, None].double()
    max_excess = n_included * k * (2 * n_included - 3 * k - 1) / 2
    return torch.stack(
        [
            stretch_ratios.double(),
            n_shared / (k * n_included),
            1 - intruder_excess / max_excess,
            1 - lost_excess / max_excess,
            rsa,
            cka,
        ],
        -1,
    )


def stretch_ratio(
    cloud_distances: Float[Tensor, "b 1 p"], image_distances: Float[Tensor, "b c p"], is_usable: Bool[Tensor, "b p"]
) -> Float[Tensor, "b c"]:
    """The ratio of the 95 % and 5 % quantiles of the stretch of distinct pairs; NaN if there are none."""
    longest = torch.where(is_usable[:, None], cloud_distances, 0).amax(-1, keepdim=True)
    is_distinct = is_usable[:, None] & (cloud_distances > 1e-12 * longest)
    stretch = (
        torch.where(is_distinct, image_distances / torch.where(is_distinct, cloud_distances, 1), torch.inf)
        .sort(-1)
        .values
    )
    last_index = is_distinct.sum(-1).double() - 1
    low, high = (
        stretch.gather(
            -1, (quantile * last_index).round().long().clamp(min=0)[..., None].expand(*stretch.shape[:2], 1)
        )[..., 0]
        for quantile in (0.05, 0.95)
    )
    return torch.where(last_index >= 0, high / low, torch.nan).double()


def linear_cka(x: Float[Tensor, "b 1 n d"], y: Float[Tensor, "b c n e"]) -> Float[Tensor, "b c"]:
    """Linear CKA of centred clouds, ‖XᵀY‖² / (‖XᵀX‖ ‖YᵀY‖); 0 if a cloud is a single point."""
    cross_products = (x[:, 0].mT @ y.transpose(1, 2).flatten(2)).unflatten(-1, (y.shape[1], -1)).square().sum((1, 3))
    norm_x, norm_y = ((z.mT @ z).square().sum((-2, -1)).sqrt() for z in (x, y))
    return safe_divide(cross_products, norm_x * norm_y)


def _upper_indices(n: int, device: torch.device) -> Int[Tensor, " p"]:
    """Flat indices of the pairs i < j, computed without synchronising with the device."""
    i, j = torch.triu_indices(n, n, 1, device=device)
    return i * n + j


def _usable_pairs(is_included: Bool[Tensor, "b n"]) -> Bool[Tensor, "b p"]:
    """The pairs i < j of included tokens."""
    return (
        _pair_mask(is_included).flatten(-2).index_select(-1, _upper_indices(is_included.shape[-1], is_included.device))
    )


def _pair_mask(is_included: Bool[Tensor, "b n"]) -> Bool[Tensor, "b n n"]:
    return is_included[:, :, None] & is_included[:, None]


def _neighbour_candidates(is_included: Bool[Tensor, "b n"]) -> Bool[Tensor, "b n n"]:
    """The pairs of different included tokens."""
    return _pair_mask(is_included) & ~torch.eye(is_included.shape[-1], dtype=torch.bool, device=is_included.device)
