"""Triton kernels that compare a distance matrix with another one, in three passes with one program per row.

    neighbour_pass   the neighbours of a row in either matrix and their ranks in the other; the extremes of distance and stretch
    histogram_pass   the number of pairs in each of many equally wide bins of distance and of stretch
    rank_sum_pass    the mean ranks of the bins times the ranks of the other matrix; finer bins around two quantiles

No pass creates anything as large as the matrix. A pair is i < j of included tokens. `@no_type_check` exempts code that
Triton compiles from the shape checker.
"""

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

N_DISTANCE_BINS = 1 << 17
"""Bins of distances. With half a million pairs a bin contains a few."""
N_STRETCH_BINS, N_FINE_BINS = 1 << 16, 1 << 12
"""Bins of stretches, and fine bins inside one of them."""
QUANTILES = (0.05, 0.95)


@triton.jit
@no_type_check
def load_row(D, IS_INCLUDED, n, clouds_per_text, BLOCK: tl.constexpr):
    """The distances of one row, its indices, its candidate neighbours, and whether the row itself is included."""
    row = tl.program_id(0).to(tl.int64)
    cloud, i = row // n, (row % n).to(tl.int32)
    text = cloud // clouds_per_text
    j = tl.arange(0, BLOCK)
    is_candidate = (tl.load(IS_INCLUDED + text * n + j, mask=j < n, other=0) != 0) & (j != i)
    is_included = tl.load(IS_INCLUDED + text * n + i) != 0
    d = tl.load(D + row * n + j, mask=j < n, other=0.0)
    return row, cloud, text, i, j, d, is_candidate, is_included


@triton.jit
@no_type_check
def neighbour_pass(
    D, X, IS_INCLUDED, NEIGHBOUR_RANKS, NEAREST, MIN_DISTANCE, COUNTS, EXTREMES, n, clouds_per_text, K: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row, _cloud, text, i, j, d, is_candidate, is_included = load_row(D, IS_INCLUDED, n, clouds_per_text, BLOCK)
    x = tl.load(X + (text * n + i) * n + j, mask=j < n, other=0.0)
    candidates = tl.where(is_candidate, d, float("inf"))
    remaining = candidates
    n_shared, intruder_excess, lost_excess = 0, 0, 0
    for _t in tl.static_range(K):
        smallest = tl.min(remaining, 0)
        neighbour = tl.min(tl.where(remaining == smallest, j, BLOCK), 0)
        neighbour_rank = tl.load(NEIGHBOUR_RANKS + (text * n + i) * n + tl.minimum(neighbour, n - 1))
        n_shared += (neighbour_rank < K).to(tl.int32)
        intruder_excess += tl.maximum(neighbour_rank - K + 1, 0)
        remaining = tl.where(j == neighbour, float("inf"), remaining)
    for t in tl.static_range(K):
        neighbour = tl.load(NEAREST + (text * n + i) * K + t)
        neighbour_distance = tl.sum(tl.where(j == neighbour, d, 0.0), 0)
        is_nearer = (candidates < neighbour_distance) | ((candidates == neighbour_distance) & (j < neighbour))
        lost_excess += tl.maximum(tl.sum(is_nearer.to(tl.int32), 0) - K + 1, 0)
    is_pair = is_candidate & is_included & (j > i) & (j < n)
    is_distinct = is_pair & (x > tl.load(MIN_DISTANCE + text))
    stretch = tl.where(is_distinct, d / tl.where(is_distinct, x, 1.0), 0.0)
    row_weight = is_included.to(tl.int32)
    tl.store(COUNTS + row * 3, n_shared * row_weight)
    tl.store(COUNTS + row * 3 + 1, intruder_excess * row_weight)
    tl.store(COUNTS + row * 3 + 2, lost_excess * row_weight)
    tl.store(EXTREMES + row * 3, tl.min(tl.where(is_pair, d, float("inf")), 0))
    tl.store(EXTREMES + row * 3 + 1, tl.max(tl.where(is_pair, d, 0.0), 0))
    tl.store(EXTREMES + row * 3 + 2, tl.max(stretch, 0))


@triton.jit
@no_type_check
def bins_of_row(
    D,
    X,
    IS_INCLUDED,
    MIN_DISTANCE,
    SCALES,
    n,
    clouds_per_text,
    DISTANCE_BINS: tl.constexpr,
    STRETCH_BINS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The distance bin and the stretch bin of every pair of a row, and the offset of the stretch in its bin."""
    row, cloud, text, i, j, d, is_candidate, is_included = load_row(D, IS_INCLUDED, n, clouds_per_text, BLOCK)
    x = tl.load(X + (text * n + i) * n + j, mask=j < n, other=0.0)
    is_pair = is_candidate & is_included & (j > i) & (j < n)
    is_distinct = is_pair & (x > tl.load(MIN_DISTANCE + text))
    low, step = tl.load(SCALES + cloud * 3), tl.load(SCALES + cloud * 3 + 1)
    distance_bin = tl.minimum(tl.maximum(((d - low) * step).to(tl.int32), 0), DISTANCE_BINS - 1)
    stretch = tl.where(is_distinct, d / tl.where(is_distinct, x, 1.0), 0.0) * tl.load(SCALES + cloud * 3 + 2)
    stretch_bin = tl.minimum(tl.maximum(stretch.to(tl.int32), 0), STRETCH_BINS - 1)
    return row, cloud, text, i, j, is_pair, is_distinct, distance_bin, stretch_bin, stretch - stretch_bin.to(tl.float32)


@triton.jit
@no_type_check
def histogram_pass(
    D, X, IS_INCLUDED, MIN_DISTANCE, SCALES, DISTANCE_COUNTS, STRETCH_COUNTS, n, clouds_per_text,
    DISTANCE_BINS: tl.constexpr, STRETCH_BINS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    _row, cloud, _text, _i, _j, is_pair, is_distinct, distance_bin, stretch_bin, _bin_offset = bins_of_row(
        D, X, IS_INCLUDED, MIN_DISTANCE, SCALES, n, clouds_per_text, DISTANCE_BINS, STRETCH_BINS, BLOCK
    )
    tl.atomic_add(DISTANCE_COUNTS + cloud * DISTANCE_BINS + distance_bin, 1, mask=is_pair, sem="relaxed")
    tl.atomic_add(STRETCH_COUNTS + cloud * STRETCH_BINS + stretch_bin, 1, mask=is_distinct, sem="relaxed")


@triton.jit
@no_type_check
def rank_sum_pass(
    D, X, IS_INCLUDED, MIN_DISTANCE, SCALES, MEAN_RANKS, RANKS, QUANTILE_BINS, FINE_COUNTS, SUMS, n, clouds_per_text,
    DISTANCE_BINS: tl.constexpr, STRETCH_BINS: tl.constexpr, FINE_BINS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, cloud, text, i, j, is_pair, is_distinct, distance_bin, stretch_bin, bin_offset = bins_of_row(
        D, X, IS_INCLUDED, MIN_DISTANCE, SCALES, n, clouds_per_text, DISTANCE_BINS, STRETCH_BINS, BLOCK
    )
    mean_rank = tl.load(MEAN_RANKS + cloud * DISTANCE_BINS + distance_bin, mask=is_pair, other=0.0)
    rank = tl.load(RANKS + (text * n + i) * n + j, mask=is_pair, other=0.0)
    tl.store(SUMS + row, tl.sum(mean_rank * rank, 0))
    fine_bin = tl.minimum(tl.maximum((bin_offset * FINE_BINS).to(tl.int32), 0), FINE_BINS - 1)
    for quantile in tl.static_range(2):
        quantile_bin = tl.load(QUANTILE_BINS + cloud * 2 + quantile)
        tl.atomic_add(
            FINE_COUNTS + (cloud * 2 + quantile) * FINE_BINS + fine_bin,
            1,
            mask=is_distinct & (stretch_bin == quantile_bin),
            sem="relaxed",
        )


class PairStatistics(NamedTuple):
    """Shared neighbours and rank excess of intruders and lost neighbours, summed over rows; rank correlation; r₉₅/r₀₅ of the stretch."""

    n_shared: Int[Tensor, "b c"]
    intruder_excess: Int[Tensor, "b c"]
    lost_excess: Int[Tensor, "b c"]
    rsa: Float[Tensor, "b c"]
    stretch_ratio: Float[Tensor, "b c"]


def pair_statistics(
    images: Float[Tensor, "b c n n"],
    cloud: Float[Tensor, "b n n"],
    is_included: Bool[Tensor, "b n"],
    neighbour_ranks: Int[Tensor, "b n n"],
    nearest_tokens: Int[Tensor, "b n k"],
    ranks: Float[Tensor, "b n n"],
) -> PairStatistics:
    """How well the distance matrices of images preserve that of their cloud.

    `neighbour_ranks`, `nearest_tokens` and `ranks` describe the cloud: the rank of every token as a neighbour of each row,
    the nearest tokens of each row, and the normalised ranks of the pairs i < j (0 elsewhere).
    """
    b, c, n, _ = images.shape
    grid, block, device = (b * c * n,), triton.next_power_of_2(n), images.device
    is_included = is_included.to(torch.int8)
    min_distance = 1e-12 * cloud.amax((-2, -1))
    kernel_inputs = (images, cloud, is_included, min_distance)
    counts = torch.empty(b, c, n, 3, dtype=torch.int32, device=device)
    extremes = torch.empty(b, c, n, 3, dtype=torch.float32, device=device)
    launch_options = {"BLOCK": block, "num_warps": 4}
    neighbour_inputs = (images, cloud, is_included, neighbour_ranks, nearest_tokens, min_distance)
    neighbour_pass[grid](*neighbour_inputs, counts, extremes, n, c, K=nearest_tokens.shape[-1], **launch_options)
    low, high, longest = extremes[..., 0].amin(-1), extremes[..., 1].amax(-1), extremes[..., 2].amax(-1)
    scales = torch.stack(
        [low, _safe_ratio(N_DISTANCE_BINS - 1, high - low), _safe_ratio(N_STRETCH_BINS - 1, longest)], -1
    )
    bin_options = {"DISTANCE_BINS": N_DISTANCE_BINS, "STRETCH_BINS": N_STRETCH_BINS}
    distance_counts = torch.zeros(b, c, N_DISTANCE_BINS, dtype=torch.int32, device=device)
    stretch_counts = torch.zeros(b, c, N_STRETCH_BINS, dtype=torch.int32, device=device)
    histogram_pass[grid](*kernel_inputs, scales, distance_counts, stretch_counts, n, c, **bin_options, **launch_options)
    mean_ranks, rank_norm = bin_mean_ranks(distance_counts)
    quantile_bins, quantile_ranks = find_quantile_bins(stretch_counts)
    fine_counts = torch.zeros(b, c, 2, N_FINE_BINS, dtype=torch.int32, device=device)
    rank_sums = torch.empty(b, c, n, dtype=torch.float32, device=device)
    rank_inputs = (*kernel_inputs, scales, mean_ranks, ranks, quantile_bins)
    bin_options |= {"FINE_BINS": N_FINE_BINS}
    rank_sum_pass[grid](*rank_inputs, fine_counts, rank_sums, n, c, **bin_options, **launch_options)
    fine_bins = torch.searchsorted(fine_counts.cumsum(-1), quantile_ranks[..., None])[..., 0]
    quantiles = torch.where((quantile_bins == 0) & (fine_bins == 0), 0, quantile_bins + (fine_bins + 0.5) / N_FINE_BINS)
    is_empty = stretch_counts.sum(-1) == 0
    n_shared, intruder_excess, lost_excess = counts.sum(2).unbind(-1)
    return PairStatistics(
        n_shared,
        intruder_excess,
        lost_excess,
        rsa=torch.where(
            rank_norm > 0, rank_sums.sum(-1, dtype=torch.float64) / torch.where(rank_norm > 0, rank_norm, 1), 0
        ),
        stretch_ratio=torch.where(
            is_empty, torch.nan, torch.where(longest > 0, quantiles[..., 1] / quantiles[..., 0], torch.nan)
        ),
    )


def bin_mean_ranks(counts: Int[Tensor, "b c k"]) -> tuple[Float[Tensor, "b c k"], Float[Tensor, "b c"]]:
    """The mean rank of every bin minus the mean of all ranks, and the norm of all ranks."""
    cumulative = counts.cumsum(-1, dtype=torch.int32)
    means = cumulative.float() - (counts + cumulative[..., -1:]).float() / 2
    return means, (counts * means.double().square()).sum(-1).sqrt()


def find_quantile_bins(counts: Int[Tensor, "b c k"]) -> tuple[Int[Tensor, "b c 2"], Int[Tensor, "b c 2"]]:
    """The bins of the two quantiles, and the rank of each quantile inside its bin, counted from 1."""
    cumulative = counts.cumsum(-1, dtype=torch.int32)
    last_index = (cumulative[..., -1:].double() - 1).clamp(min=0)
    target_ranks = (last_index * torch.tensor(QUANTILES, dtype=torch.float64, device=counts.device)).round().int() + 1
    bins = torch.searchsorted(cumulative, target_ranks).clamp(max=counts.shape[-1] - 1)
    n_before = torch.where(bins > 0, cumulative.gather(-1, (bins - 1).clamp(min=0)), 0)
    return bins.int(), (target_ranks - n_before).long()


def _safe_ratio(number: int, x: Tensor) -> Tensor:
    return torch.where(x > 0, number / torch.where(x > 0, x, 1), 0)
