"""Ranks and rank correlations along rows with a mask of usable entries, many rows at a time."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

CACHED_ROWS = 1 << 17
"""On a CPU, rows of so many numbers together are ranked at once (1 MiB)."""
MAX_SORTED_ROW, N_BINS = 1 << 17, 1 << 18
"""On a GPU, rows longer than the first number are ranked in bins; the second is the number of bins."""


def centred_ranks(x: Float[Tensor, "*t m n"], usable: Bool[Tensor, "*#t #m n"]) -> Float[Tensor, "*t m n"]:
    """The rank of every usable entry within its row, minus the mean rank; 0 elsewhere. Float64.

    Entries that are equal up to rounding get their mean rank. Inner products of such rows are the numerator of Spearman's
    correlation.

    >>> centred_ranks(torch.tensor([[3.0, 1.0, 9.0, 1.0]]), torch.tensor([[True, True, False, True]])).tolist()
    [[1.0, -0.5, 0.0, -0.5]]
    """
    if x.device.type != "cpu":
        return (centred_ranks_in_bins if x.shape[-1] > MAX_SORTED_ROW else centred_ranks_by_search)(x, usable)
    row_scale = torch.where(usable, x, 0).abs().amax(-1, keepdim=True).double()
    filled = torch.where(usable, x.double(), float("inf"))
    order = stable_argsort(filled)
    filled = filled.gather(-1, order)
    is_tied = filled.diff(dim=-1) <= 16 * torch.finfo(x.dtype).eps * row_scale  # ∞ − ∞ is NaN and no tie
    sorted_ranks = torch.arange(x.shape[-1], dtype=torch.float64)
    has_ties = is_tied.any(-1)
    if bool(has_ties.any()):
        sorted_ranks = sorted_ranks.expand(x.shape).contiguous()
        sorted_ranks[has_ties] = _tied_ranks(is_tied[has_ties])
    else:
        sorted_ranks = sorted_ranks.expand(x.shape)
    ranks = torch.empty_like(filled).scatter_(-1, order, sorted_ranks)
    return torch.where(usable, ranks - (usable.sum(-1, keepdim=True) - 1) / 2, 0)


def centred_ranks_by_search(x: Float[Tensor, "*t m n"], usable: Bool[Tensor, "*#t #m n"]) -> Float[Tensor, "*t m n"]:
    """The same for a GPU, by two binary searches in the sorted row: the numbers below and the numbers not above an entry.

    No indices are sorted and nothing is copied to the host. Entries within 16 ulp of the row's largest number are ties. On a
    CPU a run of neighbouring ties may extend further.
    """
    x, count = torch.where(usable, x, float("inf")).contiguous(), usable.sum(-1, keepdim=True, dtype=torch.int32)
    sorted_x = x.sort(-1).values
    last = sorted_x.gather(-1, (count - 1).clamp(min=0).long().expand(*x.shape[:-1], 1))
    tie_width = 16 * torch.finfo(x.dtype).eps * torch.maximum(sorted_x[..., :1].abs(), last.abs())
    tie_width = torch.where(count > 0, tie_width, 0)
    doubled_ranks = torch.searchsorted(sorted_x, x - tie_width, out_int32=True)
    doubled_ranks = doubled_ranks.add_(
        torch.searchsorted(sorted_x, x.add_(tie_width), right=True, out_int32=True)
    ).sub_(count)
    return torch.where(usable, doubled_ranks, 0).double().div_(2)


def centred_ranks_in_bins(x: Float[Tensor, "*t m n"], usable: Bool[Tensor, "*#t #m n"]) -> Float[Tensor, "*t m n"]:
    """The same for long rows, in float32: entries in one of 2¹⁸ bins of equal width get their mean rank.

    A bin holds a few of half a million distances, so a correlation of such ranks is off by less than 1e-5.
    """
    low = torch.where(usable, x, torch.inf).amin(-1, keepdim=True).clamp(max=torch.finfo(x.dtype).max)
    x = torch.where(usable, x, low) - low
    high = x.amax(-1, keepdim=True)
    bin_index = (x * torch.where(high > 0, (N_BINS - 1) / high, 0)).long()
    count = torch.zeros(*x.shape[:-1], N_BINS, dtype=torch.int32, device=x.device)
    count.scatter_add_(-1, bin_index, usable.int().expand_as(bin_index))
    mean_rank = count.cumsum(-1, dtype=torch.int32).float() - (count.float() + 1) / 2
    return torch.where(usable, mean_rank.gather(-1, bin_index) - (usable.sum(-1, keepdim=True) - 1) / 2, 0)


def unit_ranks(x: Float[Tensor, "*t n"], usable: Bool[Tensor, "*#m n"] | None = None) -> Float[Tensor, "*t n"]:
    """Ranks along rows, centred and of length 1: their inner product is Spearman's correlation. 0 if all entries are equal.

    >>> unit_ranks(torch.tensor([5.0, 8.0])).round(decimals=3).tolist()
    [-0.707, 0.707]
    """
    rows = x if x.ndim > 1 else x[None]
    ranks = centred_ranks(rows, rows.new_ones(rows.shape[-2:], dtype=torch.bool) if usable is None else usable)
    size = ranks.norm(dim=-1, keepdim=True)
    return torch.where(size > 0, ranks / torch.where(size > 0, size, 1), 0).reshape(x.shape)


def rank_correlations(x: Float[Tensor, "*t n"], reference_ranks: Float[Tensor, " n"]) -> Float[Tensor, "*t"]:
    """Spearman's correlation of every row with a reference of these `unit_ranks`; 0 for a row whose entries are all equal.

    It equals `unit_ranks(x.double()) @ reference_ranks`. On a CPU ranks are not written down: the order of a row sorts the
    reference instead.

    >>> reference_ranks = unit_ranks(torch.tensor([1.0, 2.0, 3.0]).double())
    >>> rank_correlations(torch.tensor([[1.0, 8.0, 9.0], [9.0, 8.0, 7.0]]).double(), reference_ranks).round(decimals=3).tolist()
    [1.0, -1.0]
    """
    if x.device.type != "cpu" or x.shape[-1] < 2:
        return unit_ranks(x.double()) @ reference_ranks
    if x.dtype == torch.float32:
        return _float32_rank_correlations(x, reference_ranks)
    rows, n = x.double().reshape(-1, x.shape[-1]), x.shape[-1]
    ranks = torch.arange(n, dtype=torch.float64) - (n - 1) / 2
    sorted_ranks = ranks / ranks.norm()
    chunks = [
        _rank_correlations(chunk, reference_ranks, sorted_ranks) for chunk in rows.split(max(1, CACHED_ROWS // n))
    ]
    return torch.cat(chunks).reshape(x.shape[:-1])


def _rank_correlations(
    rows: Float[Tensor, "r n"], reference_ranks: Float[Tensor, " n"], sorted_ranks: Float[Tensor, " n"]
) -> Float[Tensor, " r"]:
    order = stable_argsort(rows)
    sorted_rows = rows.gather(-1, order)
    width = 16 * torch.finfo(rows.dtype).eps * torch.maximum(sorted_rows[:, 0].abs(), sorted_rows[:, -1].abs())
    has_ties = ~(sorted_rows.diff(dim=-1).abs_().amin(-1) > width)  # NaN included
    sorted_reference = torch.index_select(reference_ranks, 0, order.flatten(), out=sorted_rows.view(-1))
    correlations = sorted_reference.view(rows.shape) @ sorted_ranks
    if bool(has_ties.any()):
        correlations[has_ties] = unit_ranks(rows[has_ties]) @ reference_ranks
    return correlations


def spearman(
    a: Float[Tensor, "*#t n"], b: Float[Tensor, "*#t n"], usable: Bool[Tensor, "m n"] | None = None
) -> Float[Tensor, "*t"]:
    """Spearman's rank correlation along rows over the usable entries; 0 if one of the two is constant.

    >>> round(float(spearman(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([0.1, 0.3, 0.2]))), 6)
    0.5
    """
    return (unit_ranks(a, usable) * unit_ranks(b, usable)).sum(-1)


def _float32_rank_correlations(x: Float[Tensor, "*t n"], reference: Float[Tensor, " n"]) -> Float[Tensor, "*t"]:
    """`rank_correlations` of float32 rows on a CPU, whose bits and indices fit into one integer, so nothing is rounded.

    **Formula** With the reference c in the order of x, the numerator is Σ p c_(p) over places p. Entries of a run of ties have their mean
    place, so a run adds Σ (mean − p) c_(p) and takes (m³ − m)/12 from the squared length (n³ − n)/12. Ranks are never put back in the
    order of x, which takes twice as long as to sort them. Ties are those of `centred_ranks` for float64.
    """
    n, shape = x.shape[-1], x.shape[:-1]
    bits = x.detach().contiguous().numpy().reshape(-1, n).view(np.int32)
    keys = (bits ^ ((bits >> 31) & np.int32(2**31 - 1))).astype(np.int64)  # integers in the order of the numbers
    keys <<= 32
    keys |= np.arange(n)
    keys.sort(-1)
    sorted_reference = reference.detach().numpy().take(keys & (2**32 - 1))
    bits = (keys >> 32).astype(np.int32)
    sorted_x = (bits ^ ((bits >> 31) & np.int32(2**31 - 1))).view(np.float32)
    tie_width = 16 * torch.finfo(torch.float64).eps * np.abs(sorted_x[:, [0, -1]]).max(-1, keepdims=True)
    products = sorted_reference @ (np.arange(n) - (n - 1) / 2)
    squares = np.full(len(products), (n**3 - n) / 12)
    first, length, row = tied_runs(np.diff(sorted_x) <= tie_width)
    if len(first):
        offsets = np.arange(length.sum()) - np.repeat(length.cumsum() - length, length)
        entries = np.repeat(row * n + first, length) + offsets
        shifts = sorted_reference.ravel()[entries] * (np.repeat((length - 1) / 2, length) - offsets)
        products += np.bincount(np.repeat(row, length), shifts, len(products))
        squares -= np.bincount(row, (length**3 - length) / 12, len(products))
    has_spread = squares > 0.25  # two entries that differ have 1/2
    correlations = np.where(has_spread, products / np.sqrt(np.where(has_spread, squares, 1)), 0)
    return torch.from_numpy(correlations).reshape(shape)


def tied_runs(is_tied: Bool[np.ndarray, "r n1"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First place, length and row of every run of ties: `is_tied[:, p]` means that sorted entries p and p + 1 are equal.

    >>> [x.tolist() for x in tied_runs(np.array([[True, True, False, True]]))]
    [[0, 3], [3, 2], [0, 0]]
    """
    row, place = np.divmod(np.flatnonzero(is_tied), is_tied.shape[-1])
    is_first = np.ones(len(row), dtype=bool)
    is_first[1:] = (np.diff(place) != 1) | (np.diff(row) != 0)
    starts = is_first.nonzero()[0]
    return place[starts], np.diff(starts, append=len(row)) + 1, row[starts]


def stable_argsort(x: Float[Tensor, "*t n"]) -> Int[Tensor, "*t n"]:
    """The indices that sort every row in ascending order; ties keep their order and NaN comes last.

    On a CPU the indices replace the last bits of the numbers, so only numbers are sorted, which is twice as fast. Float64
    numbers that differ only in those bits (2⁻⁴² of the number in a row of a thousand) count as ties. Float32 numbers never do.

    >>> stable_argsort(torch.tensor([[3.0, -1.0, 9.0, -1.0]])).tolist()
    [[1, 3, 0, 2]]
    """
    if x.device.type != "cpu":
        return x.argsort(stable=True, dim=-1)
    bits = x.detach().double().contiguous().numpy().view(np.int64)
    mask = (1 << max(1, (x.shape[-1] - 1).bit_length())) - 1
    if bits.size and bits.min() < 0:  # integers in the order of the numbers, negative ones included
        bits = bits ^ ((bits >> 63) & np.int64(2**63 - 1))
    packed_bits = bits & ~np.int64(mask)
    packed_bits |= np.arange(x.shape[-1], dtype=np.int64)
    packed_bits.sort(-1)
    packed_bits &= np.int64(mask)
    return torch.from_numpy(packed_bits)


def _tied_ranks(is_tied: Bool[Tensor, "r n1"]) -> Float[Tensor, "r n"]:
    """Mean ranks of runs of ties: `is_tied[:, p]` means that sorted entries p and p + 1 are equal."""
    edge = torch.ones_like(is_tied[:, :1])
    indices = torch.arange(is_tied.shape[-1] + 1, device=is_tied.device)
    first = torch.where(torch.cat([edge, ~is_tied], -1), indices, 0).cummax(-1).values
    last = torch.where(torch.cat([~is_tied, edge], -1), indices, len(indices)).flip(-1).cummin(-1).values.flip(-1)
    return (first + last).double() / 2
