"""How well images preserve a cloud, on a CPU: the scores of `compare_geometries`, several times as fast.

Squared distances are sorted as integers whose last bits are indices, so one sort of numbers gives an order. All steps share a
few buffers, because fresh memory costs as much as the arithmetic. Images with ties are marked and left to `compare_geometries`.
"""

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.covers.cloud_comparison import STRETCH_QUANTILES, Geometry, pairs_with_rows
from rheoscope.space.pair_distances import distance_rounding
from rheoscope.space.safe_arithmetic import safe_divide

EPSILON = torch.finfo(torch.float64).eps
Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class SortedReference:
    """A cloud that images are compared with: its geometry, the flat indices of its pairs and the nearest tokens of its rows.

    `length_weights` are the weights of ‖x_j‖² in ⟨inner products of the cloud, ‖x_i‖² + ‖x_j‖²⟩. `ascending_ranks` are the ranks of
    sorted pairs, centred and scaled to length 1.
    """

    geometry: Geometry
    pair_indices: Int[Tensor, " p"]
    squared_distances: Float[Tensor, " p"]
    neighbour_ranks: Int[Tensor, "m n"]
    nearest_tokens: Int[Tensor, "m k"]
    length_weights: Float[Tensor, " n"]
    ascending_ranks: Float[Tensor, " p"]


def sorted_reference(cloud: Geometry, n_neighbours: int) -> SortedReference | None:
    """The reference of `compare_sorted`; None for a cloud in which two tokens are equal."""
    if not bool((cloud.pair_distances > 1e-12 * cloud.pair_distances.max()).all()):
        return None
    ranks = torch.arange(cloud.pair_distances.shape[-1], dtype=torch.float64)
    ranks -= ranks.mean()
    return SortedReference(
        cloud,
        pairs_with_rows(cloud.rows, cloud.x.shape[-2]).flatten().nonzero()[:, 0],
        cloud.pair_distances.square(),
        cloud.neighbour_ranks.long(),
        cloud.neighbour_ranks.topk(n_neighbours, largest=False).indices,
        cloud.inner_products.sum(-2).index_add(0, cloud.rows, cloud.inner_products.sum(-1)),
        ranks / ranks.norm(),
    )


@dataclass(frozen=True, eq=False)
class Buffers:
    """The memory of a comparison: squared distances from every row and of every pair, numbers and integers of every pair."""

    squared: Float[Tensor, "c m n"]
    pairs: Float[Tensor, "c p"]
    numbers: Float[Tensor, "c p"]
    integers: Int[Tensor, "c p"]

    def first(self, n: int) -> "Buffers":
        """The buffers of the first n images."""
        return Buffers(self.squared[:n], self.pairs[:n], self.numbers[:n], self.integers[:n])


def make_buffers(reference: SortedReference, n_images: int) -> Buffers:
    """Buffers for a comparison of so many images at once."""
    table_shape, n_pairs = reference.geometry.inner_products.shape, len(reference.pair_indices)
    pairs, numbers = torch.empty(2, n_images, n_pairs, dtype=torch.float64)
    integers = torch.empty(n_images, n_pairs, dtype=torch.int64)
    return Buffers(torch.empty(n_images, *table_shape, dtype=torch.float64), pairs, numbers, integers)


def compare_sorted(
    reference: SortedReference, images: Float[Tensor, "c n e"], buffers: Buffers
) -> tuple[Float[Tensor, "c 6"], Bool[Tensor, " c"]]:
    """The scores of `PRESERVATION_FIELDS` of every image, and whether ties make them invalid."""
    x = images.double()
    x = x - x.mean(-2, keepdim=True)
    squared_norms, buffers = x.square().sum(-1), buffers.first(len(x))
    _write_squared_distances(x, squared_norms, reference, buffers)
    cka = _linear_cka(reference, x, squared_norms, buffers.squared)
    spread = _stretch_ratio(reference, buffers)
    smallest_distance = 2 * distance_rounding(torch.float64) * squared_norms.amax(-1)
    rsa, has_ties = _rank_correlation(reference, buffers, smallest_distance)
    neighbour_scores = _neighbour_scores(reference, buffers.squared)
    return torch.stack([spread, *neighbour_scores.unbind(-1), rsa, cka], -1), has_ties


def _write_squared_distances(
    x: Float[Tensor, "c n e"], squared_norms: Float[Tensor, "c n"], reference: SortedReference, buffers: Buffers
) -> None:
    """‖x_i − x_j‖² = ⟨(−2x_i, ‖x_i‖², 1), (x_j, 1, ‖x_j‖²)⟩ as one matrix product, and the same of every pair."""
    lengths, ones, rows = squared_norms[..., None], torch.ones_like(squared_norms)[..., None], reference.geometry.rows
    left, right = torch.cat([-2 * x, lengths, ones], -1), torch.cat([x, ones, lengths], -1)
    torch.matmul(left if len(rows) == x.shape[-2] else left[:, rows], right.mT, out=buffers.squared)
    torch.index_select(buffers.squared.flatten(1), 1, reference.pair_indices, out=buffers.pairs)


def _linear_cka(
    reference: SortedReference,
    x: Float[Tensor, "c n e"],
    squared_norms: Float[Tensor, "c n"],
    squared: Float[Tensor, "c m n"],
) -> Float[Tensor, " c"]:
    """The cosine of the inner products of the cloud and of an image.

    **Formula** ⟨x_i, x_j⟩ = ½(‖x_i‖² + ‖x_j‖² − ‖x_i − x_j‖²), and the norm of all inner products is that of XᵀX.
    """
    weights, rows = reference.geometry.inner_products, reference.geometry.rows
    products = squared_norms @ reference.length_weights - squared.flatten(1) @ weights.flatten()
    gram = x.mT @ x
    row_gram = gram if len(rows) == x.shape[-2] else x[:, rows].mT @ x[:, rows]
    norm = (gram * row_gram).sum((-2, -1)).clamp(min=0).sqrt()
    return safe_divide(products / 2, norm)


def _stretch_ratio(reference: SortedReference, buffers: Buffers) -> Float[Tensor, " c"]:
    """The ratio of the 95 % and 5 % quantiles of the stretch of pairs."""
    torch.div(buffers.pairs, reference.squared_distances, out=buffers.numbers)
    stretch, last_index = buffers.numbers.numpy(), buffers.numbers.shape[-1] - 1
    quantiles = []
    for quantile in STRETCH_QUANTILES:
        index = round(quantile * last_index)
        stretch.partition(index, -1)  # one index at a time: several at once take five times as long
        quantiles.append(torch.from_numpy(stretch[:, index].copy()))
    return (quantiles[1] / quantiles[0]).sqrt()


def _rank_correlation(
    reference: SortedReference, buffers: Buffers, rounding: Float[Tensor, " c"]
) -> tuple[Float[Tensor, " c"], Bool[Tensor, " c"]]:
    """Spearman's correlation of distances, and whether two of them are equal up to rounding. Overwrites the pairs."""
    order = _pack_indices(buffers.pairs.numpy(), out=buffers.integers.numpy())
    order.sort(-1)
    order &= _index_mask(order.shape[-1])
    torch.gather(buffers.pairs, 1, buffers.integers, out=buffers.numbers)
    smallest, largest = buffers.numbers[:, 0].clone(), buffers.numbers[:, -1].clone()
    gaps = torch.sub(buffers.numbers[:, 1:], buffers.numbers[:, :-1], out=buffers.pairs[:, 1:]).abs_()
    has_ties = (gaps.amin(-1) <= 16 * EPSILON * largest) | (smallest <= rounding)
    torch.index_select(reference.geometry.pair_ranks, 0, buffers.integers.flatten(), out=buffers.numbers.view(-1))
    return buffers.numbers @ reference.ascending_ranks, has_ties


def _neighbour_scores(reference: SortedReference, squared: Float[Tensor, "c m n"]) -> Float[Tensor, "c 3"]:
    """Shared neighbours, trustworthiness and continuity. Overwrites the squared distances."""
    (c, m, n), k = squared.shape, reference.nearest_tokens.shape[-1]
    if m == n:
        squared.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
    else:
        squared[:, torch.arange(m), reference.geometry.rows] = torch.inf
    packed = _pack_indices(squared.numpy(), out=squared.numpy().view(np.int64))
    table = torch.from_numpy(packed)
    reference_keys = table.gather(-1, reference.nearest_tokens.expand(c, m, k))
    packed.sort(-1)
    nearest_tokens = table[..., :k] & _index_mask(n)
    cloud_ranks = reference.neighbour_ranks.expand(c, m, n).gather(-1, nearest_tokens)
    image_ranks = torch.searchsorted(table, reference_keys)
    shared = (cloud_ranks < k).sum((-2, -1)).double() / (m * k)
    penalties = [
        (ranks - k + 1).clamp(min=0).sum((-2, -1)).double() * 2 / (m * k * (2 * n - 3 * k - 1))
        for ranks in (cloud_ranks, image_ranks)
    ]
    return torch.stack([shared, 1 - penalties[0], 1 - penalties[1]], -1)


def _pack_indices(x: Array, out: Array) -> Array:
    """Numbers that are not negative as integers of the same order, with indices in place of their last bits."""
    np.bitwise_and(x.view(np.int64), ~np.int64(_index_mask(x.shape[-1])), out=out)
    out |= np.arange(x.shape[-1])
    return out


def _index_mask(n: int) -> int:
    """The bits that indices below n take."""
    return (1 << max(1, math.ceil(math.log2(n)))) - 1
