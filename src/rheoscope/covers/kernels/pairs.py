"""What a table of distances keeps of another, in three passes over it, a row to a program: nothing as large as it is ever made.

    rows      the nearest of a row in either table and their order in the other one; the largest distance and stretch
    classes   how many pairs have a distance, and how many a stretch, of each of many equally wide classes
    sums      the mean ranks of the classes against the ranks of the other table; the classes of two quantiles, cut finer

A pair is i < j of tokens that count. `@no_type_check` keeps the checker of shapes away from code that is compiled for the device.
"""

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

CLASSES = 1 << 17
"""Classes of distances: of half a million pairs a class holds a few."""
STRETCHES, FINER = 1 << 16, 1 << 12
"""Classes of stretches, and of those inside one of them."""
SHARES = (0.05, 0.95)


@triton.jit
@no_type_check
def row_of(D, THERE, n, texts_clouds, BLOCK: tl.constexpr):
    """Distances of one row, infinite where no token counts; where it stands, and which tokens count."""
    row = tl.program_id(0).to(tl.int64)
    cloud, i = row // n, (row % n).to(tl.int32)
    text = cloud // texts_clouds
    j = tl.arange(0, BLOCK)
    here = (tl.load(THERE + text * n + j, mask=j < n, other=0) != 0) & (j != i)
    own = tl.load(THERE + text * n + i) != 0
    d = tl.load(D + row * n + j, mask=j < n, other=0.0)
    return row, cloud, text, i, j, d, here, own


@triton.jit
@no_type_check
def rows_pass(
    D, X, THERE, ORDER, NEAR, LEAST, COUNTS, ENDS, n, texts_clouds, K: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row, _cloud, text, i, j, d, here, own = row_of(D, THERE, n, texts_clouds, BLOCK)
    x = tl.load(X + (text * n + i) * n + j, mask=j < n, other=0.0)
    near = tl.where(here, d, float("inf"))
    rest = near
    shared, intruders, lost = 0, 0, 0
    for _t in tl.static_range(K):
        low = tl.min(rest, 0)
        at = tl.min(tl.where(rest == low, j, BLOCK), 0)
        order = tl.load(ORDER + (text * n + i) * n + tl.minimum(at, n - 1))
        shared += (order < K).to(tl.int32)
        intruders += tl.maximum(order - K + 1, 0)
        rest = tl.where(j == at, float("inf"), rest)
    for t in tl.static_range(K):
        at = tl.load(NEAR + (text * n + i) * K + t)
        far = tl.sum(tl.where(j == at, d, 0.0), 0)
        nearer = (near < far) | ((near == far) & (j < at))
        lost += tl.maximum(tl.sum(nearer.to(tl.int32), 0) - K + 1, 0)
    pair = here & own & (j > i) & (j < n)
    apart = pair & (x > tl.load(LEAST + text))
    stretch = tl.where(apart, d / tl.where(apart, x, 1.0), 0.0)
    counted = own.to(tl.int32)
    tl.store(COUNTS + row * 3, shared * counted)
    tl.store(COUNTS + row * 3 + 1, intruders * counted)
    tl.store(COUNTS + row * 3 + 2, lost * counted)
    tl.store(ENDS + row * 3, tl.min(tl.where(pair, d, float("inf")), 0))
    tl.store(ENDS + row * 3 + 1, tl.max(tl.where(pair, d, 0.0), 0))
    tl.store(ENDS + row * 3 + 2, tl.max(stretch, 0))


@triton.jit
@no_type_check
def classes_of(
    D, X, THERE, LEAST, SCALES, n, texts_clouds, CLASSES: tl.constexpr, STRETCHES: tl.constexpr, BLOCK: tl.constexpr
):
    """The class of the distance and of the stretch of every pair of a row; where in its class a stretch lies."""
    row, cloud, text, i, j, d, here, own = row_of(D, THERE, n, texts_clouds, BLOCK)
    x = tl.load(X + (text * n + i) * n + j, mask=j < n, other=0.0)
    pair = here & own & (j > i) & (j < n)
    apart = pair & (x > tl.load(LEAST + text))
    low, step = tl.load(SCALES + cloud * 3), tl.load(SCALES + cloud * 3 + 1)
    of_distance = tl.minimum(tl.maximum(((d - low) * step).to(tl.int32), 0), CLASSES - 1)
    stretch = tl.where(apart, d / tl.where(apart, x, 1.0), 0.0) * tl.load(SCALES + cloud * 3 + 2)
    of_stretch = tl.minimum(tl.maximum(stretch.to(tl.int32), 0), STRETCHES - 1)
    return row, cloud, text, i, j, pair, apart, of_distance, of_stretch, stretch - of_stretch.to(tl.float32)


@triton.jit
@no_type_check
def classes_pass(
    D, X, THERE, LEAST, SCALES, DISTANCES, OF_STRETCH, n, texts_clouds,
    CLASSES: tl.constexpr, STRETCHES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    _row, cloud, _text, _i, _j, pair, apart, of_distance, of_stretch, _inside = classes_of(
        D, X, THERE, LEAST, SCALES, n, texts_clouds, CLASSES, STRETCHES, BLOCK
    )
    tl.atomic_add(DISTANCES + cloud * CLASSES + of_distance, 1, mask=pair, sem="relaxed")
    tl.atomic_add(OF_STRETCH + cloud * STRETCHES + of_stretch, 1, mask=apart, sem="relaxed")


@triton.jit
@no_type_check
def sums_pass(
    D, X, THERE, LEAST, SCALES, MEANS, RANKS, CUT, FINE, SUMS, n, texts_clouds,
    CLASSES: tl.constexpr, STRETCHES: tl.constexpr, FINER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, cloud, text, i, j, pair, apart, of_distance, of_stretch, inside = classes_of(
        D, X, THERE, LEAST, SCALES, n, texts_clouds, CLASSES, STRETCHES, BLOCK
    )
    mean = tl.load(MEANS + cloud * CLASSES + of_distance, mask=pair, other=0.0)
    rank = tl.load(RANKS + (text * n + i) * n + j, mask=pair, other=0.0)
    tl.store(SUMS + row, tl.sum(mean * rank, 0))
    finer = tl.minimum(tl.maximum((inside * FINER).to(tl.int32), 0), FINER - 1)
    for q in tl.static_range(2):
        cut = tl.load(CUT + cloud * 2 + q)
        tl.atomic_add(FINE + (cloud * 2 + q) * FINER + finer, 1, mask=apart & (of_stretch == cut), sem="relaxed")


class Kept(NamedTuple):
    """Sums over rows: neighbours in common, how far intruders and lost ones are; rank correlation; r₉₅/r₀₅ of the stretch."""

    shared: Int[Tensor, "b c"]
    intruders: Int[Tensor, "b c"]
    lost: Int[Tensor, "b c"]
    rsa: Float[Tensor, "b c"]
    spread: Float[Tensor, "b c"]


def kept_pairs(
    images: Float[Tensor, "b c n n"],
    cloud: Float[Tensor, "b n n"],
    there: Bool[Tensor, "b n"],
    order: Int[Tensor, "b n n"],
    near: Int[Tensor, "b n k"],
    ranks: Float[Tensor, "b n n"],
) -> Kept:
    """What tables of distances of images keep of that of their cloud.

    Of the cloud: `order` and the `near`est of every row, and `ranks`, unit ranks of the pairs i < j, 0 elsewhere.
    """
    b, c, n, _ = images.shape
    grid, block, device = (b * c * n,), triton.next_power_of_2(n), images.device
    there = there.to(torch.int8)
    least = 1e-12 * cloud.amax((-2, -1))
    given = (images, cloud, there, least)
    counts = torch.empty(b, c, n, 3, dtype=torch.int32, device=device)
    ends = torch.empty(b, c, n, 3, dtype=torch.float32, device=device)
    sizes = {"BLOCK": block, "num_warps": 4}
    rows_pass[grid](images, cloud, there, order, near, least, counts, ends, n, c, K=near.shape[-1], **sizes)
    low, high, longest = ends[..., 0].amin(-1), ends[..., 1].amax(-1), ends[..., 2].amax(-1)
    scales = torch.stack([low, _over(CLASSES - 1, high - low), _over(STRETCHES - 1, longest)], -1)
    classes = {"CLASSES": CLASSES, "STRETCHES": STRETCHES}
    distances = torch.zeros(b, c, CLASSES, dtype=torch.int32, device=device)
    stretches = torch.zeros(b, c, STRETCHES, dtype=torch.int32, device=device)
    classes_pass[grid](*given, scales, distances, stretches, n, c, **classes, **sizes)
    means, size = mean_ranks(distances)
    cut, rest = cuts(stretches)
    fine = torch.zeros(b, c, 2, FINER, dtype=torch.int32, device=device)
    sums = torch.empty(b, c, n, dtype=torch.float32, device=device)
    sums_pass[grid](*given, scales, means, ranks, cut, fine, sums, n, c, **classes, FINER=FINER, **sizes)
    within = torch.searchsorted(fine.cumsum(-1), rest[..., None])[..., 0]
    at = torch.where((cut == 0) & (within == 0), 0, cut + (within + 0.5) / FINER)
    nothing = stretches.sum(-1) == 0
    shared, intruders, lost = counts.sum(2).unbind(-1)
    return Kept(
        shared,
        intruders,
        lost,
        rsa=torch.where(size > 0, sums.sum(-1, dtype=torch.float64) / torch.where(size > 0, size, 1), 0),
        spread=torch.where(nothing, torch.nan, torch.where(longest > 0, at[..., 1] / at[..., 0], torch.nan)),
    )


def mean_ranks(count: Int[Tensor, "b c k"]) -> tuple[Float[Tensor, "b c k"], Float[Tensor, "b c"]]:
    """The mean rank of every class, less the mean of all, and the length of all ranks together."""
    up_to = count.cumsum(-1, dtype=torch.int32)
    means = up_to.float() - (count + up_to[..., -1:]).float() / 2
    return means, (count * means.double().square()).sum(-1).sqrt()


def cuts(count: Int[Tensor, "b c k"]) -> tuple[Int[Tensor, "b c 2"], Int[Tensor, "b c 2"]]:
    """The classes in which the two quantiles lie, and which of the numbers there they are, counted from 1."""
    up_to = count.cumsum(-1, dtype=torch.int32)
    last = (up_to[..., -1:].double() - 1).clamp(min=0)
    wanted = (last * torch.tensor(SHARES, dtype=torch.float64, device=count.device)).round().int() + 1
    cut = torch.searchsorted(up_to, wanted).clamp(max=count.shape[-1] - 1)
    before = torch.where(cut > 0, up_to.gather(-1, (cut - 1).clamp(min=0)), 0)
    return cut.int(), (wanted - before).long()


def _over(number: int, x: Tensor) -> Tensor:
    return torch.where(x > 0, number / torch.where(x > 0, x, 1), 0)
