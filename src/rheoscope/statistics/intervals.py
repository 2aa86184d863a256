"""Confidence intervals of 95 %: the only implementation. Every quantity declares which of these functions it uses.

bootstrap_t_interval    means and ratios of sums over units, possibly skewed: texts, documents, words, groups
student_interval        means of nearly normal numbers, such as losses of seeds
student_half_width      the same from a standard error and its degrees of freedom
median_interval         medians, also with infinite values

Fewer than `MIN_UNITS` units have no interval: both ends are NaN, and `too_few_units` says why. No end depends on the number of
threads. `benchmarks/coverage.py` measures the coverage of every function.
"""

import math
from functools import cache

import numpy as np
import torch
from jaxtyping import Float, Real
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.statistics.nulls import sign_test_p_values, student_two_sided_p

RESAMPLES = 1999
"""An odd number, so that (RESAMPLES + 1) times each tail is a whole number."""
MIN_UNITS = 4
"""The smallest number of units for an interval. The spread of fewer is too uncertain."""
MIN_MEDIAN_UNITS = 6
"""The smallest number of units for the interval of a median: the range of 5 covers it in 94 % of samples."""
TAIL = 0.025
LONG_TAIL = 0.01
"""The share of resamples beyond the end on the long side. A small sample shows less of a long tail than there is."""
MIN_ERROR_RATIO = 0.15
"""The smallest standard error of a resample, relative to the sample's. Resamples of nearly equal units would have none."""
MAX_LEVERAGE = 0.9
"""The largest share of a unit in the total size that its residual is corrected for."""
ROWS_PER_CHUNK = 256
NORMAL_QUANTILE = 1.959963984540054
MAX_BISECTED = 100
"""The largest number of degrees of freedom for which Student's law is summed exactly."""
CHUNK_TOKENS = 32
"""Tokens per unit if there are few texts."""
Interval = tuple[Float[Tensor, "*c"], Float[Tensor, "*c"]]
Rows = Float[np.ndarray, "row u"]
"""A number for every row and unit."""


def bootstrap_t_interval(
    unit_sums: Float[Tensor, "*c u"], unit_sizes: Real[Tensor, "*s u"] | None = None, seed: int = 0
) -> Interval:
    """The 95 % interval of a mean over units, or of Σ sums / Σ sizes, by the bootstrap-t. NaN for fewer than four units.

    **Formula** m = Σ S_u / n with n = Σ n_u has the jackknife's standard error e = √((U − 1)/U Σ (S_u − m n_u)²/(1 − n_u/n)²) / n
    over U units, which is the usual s/√U if all sizes are 1. Every resample of the units gives t* = (m* − m)/e*. The interval is
    m − e·q⁺ … m − e·q⁻ with the quantiles q of t* that leave 2.5 % beyond. On the longer side 1 % are left, because a small
    sample shows less of a long tail than there is, and e* counts as at least .15 e.

    **Laws** Equal units give an interval of width 0. Neither the order of rows nor the number of threads changes a bit: all
    resampled sums are sums of whole numbers.

    **Source** Hall 1988 and Efron 1981. Percentiles of resampled means cover 85 % at 5 units instead of 95 %.

    >>> low, high = bootstrap_t_interval(torch.tensor([1.0, 2.0, 3.0, 4.0, 9.0]))
    >>> bool(low < 3.8 < high), bool(3.8 - low < high - 3.8)
    (True, True)
    """
    n_units, shape = unit_sums.shape[-1], unit_sums.shape[:-1]
    if n_units < MIN_UNITS:
        return _no_interval(unit_sums)
    sums = unit_sums.detach().double().cpu().reshape(-1, n_units).numpy()
    sizes = np.ones(n_units) if unit_sizes is None else unit_sizes.detach().double().cpu().numpy()
    row_sizes = np.broadcast_to(sizes, (*shape, n_units)).reshape(-1, n_units)
    chunks = [
        _bootstrap_t(sums[start : start + ROWS_PER_CHUNK], row_sizes[start : start + ROWS_PER_CHUNK], seed)
        for start in range(0, len(sums), ROWS_PER_CHUNK)
    ]
    ends = np.concatenate(chunks, 1) if chunks else np.empty((2, 0))
    low, high = (torch.from_numpy(end).reshape(shape).to(unit_sums.dtype) for end in ends)
    return low, high


@np.errstate(divide="ignore", invalid="ignore")  # a row without spread has t* = 0/0, and one without size has no mean
def _bootstrap_t(sums: Rows, sizes: Rows, seed: int) -> Float[np.ndarray, "2 row"]:
    """Both ends of the intervals of some rows."""
    n_units, total_size = sums.shape[-1], sizes.sum(-1)
    mean = sums.sum(-1) / total_size
    residuals = sums - mean[:, None] * sizes
    weights = (n_units - 1) / n_units / (1 - np.minimum(sizes / total_size[:, None], MAX_LEVERAGE)) ** 2
    error = np.sqrt((weights * residuals**2).sum(-1)) / total_size
    shift, resampled_error = _resampled_means(residuals, sizes, weights, seed)
    t = shift / np.maximum(resampled_error, MIN_ERROR_RATIO * error[:, None])
    low_quantile, high_quantile = _end_quantiles(t)
    # NaN counts as spread, and stays NaN
    has_spread = ~(error <= 1e-14 * np.abs(sums).max(-1, initial=0) * n_units / np.abs(total_size))
    return np.stack([np.where(has_spread, mean - error * quantile, mean) for quantile in (high_quantile, low_quantile)])


def _resampled_means(residuals: Rows, sizes: Rows, weights: Rows, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """m* − m and the standard error e* of every row and resample. The weight of a unit is that of its squared residual."""
    n_units = residuals.shape[-1]
    residual, squared = resampled_sums(residuals, seed), resampled_sums(weights * residuals**2, seed)
    if (sizes == 1).all():
        weight = weights[:, :1]
        size, product, squared_size = n_units, weight * residual, weight * n_units
    else:
        series = (sizes, weights * residuals * sizes, weights * sizes**2)
        size, product, squared_size = (resampled_sums(x, seed) for x in series)
    shift = residual / size
    squares = squared - 2 * shift * product + shift**2 * squared_size
    return shift, np.sqrt(np.maximum(squares, 0)) / size


ROUNDING = 1e-9
"""Sides whose lengths differ by less are equal, so that rounding does not choose between them."""


def _end_quantiles(t: Float[np.ndarray, "row resample"]) -> tuple[np.ndarray, np.ndarray]:
    """The quantiles of t* for both ends: 2.5 % lie beyond, and 1 % on the longer side. Equal sides are both longer."""
    short, long = (round(tail * (RESAMPLES + 1)) for tail in (TAIL, LONG_TAIL))
    ordered = np.partition(t, (long - 1, short - 1, RESAMPLES - short, RESAMPLES - long), -1)
    low, high = -ordered[:, short - 1], ordered[:, -short]
    return (
        np.where(low >= high * (1 - ROUNDING), ordered[:, long - 1], -low),
        np.where(high >= low * (1 - ROUNDING), ordered[:, -long], high),
    )


def resampled_sums(x: Rows, seed: int) -> Float[np.ndarray, "row resample"]:
    """The sum of every row over the units of every resample, the same resamples for all rows.

    Numbers are rounded to multiples of 2^(bits − 52) of the largest in their row, so that all sums are exact in any order.

    >>> resampled_sums(np.ones((1, 5)), seed=0)[0, :2].tolist()
    [5.0, 5.0]
    """
    n_units = x.shape[-1]
    exponent = np.frexp(np.abs(x).max(-1, keepdims=True))[1]
    bits = 52 - (n_units + 1).bit_length()
    whole_numbers = np.rint(np.ldexp(x, bits - exponent))
    return np.ldexp(whole_numbers @ _resample_counts(n_units, seed), exponent - bits)


@cache
def _resample_counts(n_units: int, seed: int) -> Float[np.ndarray, "u resample"]:
    """How often each resample contains each unit."""
    units = np.random.default_rng(seed).integers(n_units, size=(RESAMPLES, n_units))
    indices = (units + n_units * np.arange(RESAMPLES)[:, None]).ravel()
    counts = np.bincount(indices, minlength=RESAMPLES * n_units).reshape(RESAMPLES, n_units)
    return np.ascontiguousarray(counts.T, dtype=np.float64)


def student_interval(x: Float[Tensor, "*c n"]) -> Interval:
    """The 95 % interval of a mean of n nearly normal numbers, by Student's t. NaN for fewer than four.

    >>> [round(float(end), 3) for end in student_interval(torch.tensor([1.0, 2.0, 3.0, 4.0]))]
    [0.446, 4.554]
    """
    n = x.shape[-1]
    if n < MIN_UNITS:
        return _no_interval(x)
    half_width = student_half_width(x.std(-1) / math.sqrt(n), n - 1)
    return x.mean(-1) - half_width, x.mean(-1) + half_width


def student_half_width(standard_error: Float[Tensor, "*c"], degrees_of_freedom: int) -> Float[Tensor, "*c"]:
    """Half the width of a 95 % interval from a standard error with these degrees of freedom.

    >>> round(float(student_half_width(torch.tensor(1.0), 19)), 3)
    2.093
    """
    return _student_quantile(degrees_of_freedom) * standard_error


@cache
def _student_quantile(degrees_of_freedom: int) -> float:
    """The t beyond which 5 % lie on both sides together: by bisection, or by the first terms in 1/ν for large ν."""
    if degrees_of_freedom > MAX_BISECTED:
        z, inverse = NORMAL_QUANTILE, 1 / degrees_of_freedom
        return z + (z**3 + z) / 4 * inverse + (5 * z**5 + 16 * z**3 + 3 * z) / 96 * inverse**2
    low, high = 0.0, 20.0
    for _ in range(60):
        midpoint = (low + high) / 2
        p = float(student_two_sided_p(torch.tensor(midpoint, dtype=torch.float64), degrees_of_freedom))
        low, high = (midpoint, high) if p > 2 * TAIL else (low, midpoint)
    return high


def median_interval(x: Float[Tensor, "*c n"]) -> Interval:
    """The 95 % interval of a median, between order statistics; infinities count. NaN for fewer than 6.

    **Formula** The pair (x_(d), x_(n+1−d)) covers the median in more than 95 % of samples, the next inner pair in fewer. The
    interval interpolates between them, unless an end is infinite.

    **Source** Hettmansperger and Sheather 1986.

    >>> [round(float(end), 2) for end in median_interval(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, torch.inf]))]
    [1.36, inf]
    """
    n, sorted_x = x.shape[-1], x.sort(-1).values
    if n < MIN_MEDIAN_UNITS:
        return _no_interval(x)
    order = torch.arange(n // 2)
    miss = sign_test_p_values(order, n - order)  # of the pair (x_(d), x_(n+1−d)), with d − 1 = order
    outer = int((miss <= 2 * TAIL).sum()) - 1
    depth = outer + 1
    inner_share = float((2 * TAIL - miss[outer]) / (miss[outer + 1] - miss[outer])) if depth < len(order) else 0.0
    weight = (n - depth) * inner_share / (depth + (n - 2 * depth) * inner_share)

    def interpolate(outer_end: Tensor, inner_end: Tensor) -> Tensor:
        is_finite = inner_end.isfinite() & outer_end.isfinite()
        return torch.where(is_finite, outer_end + weight * (inner_end - outer_end), outer_end)

    return (
        interpolate(sorted_x[..., outer], sorted_x[..., depth]),
        interpolate(sorted_x[..., n - depth], sorted_x[..., n - 1 - depth]),
    )


# Units


def unit_sizes(lengths: list[int]) -> list[int]:
    """Tokens of every unit: whole texts, or chunks of each text if there are too few texts.

    >>> unit_sizes([40, 8]), unit_sizes([9, 8, 7, 6])
    ([32, 8, 8], [9, 8, 7, 6])
    """
    if len(lengths) >= MIN_UNITS:
        return lengths
    return [min(CHUNK_TOKENS, length - start) for length in lengths for start in range(0, length, CHUNK_TOKENS)]


def unit_name(lengths: list[int]) -> Message:
    """The name of these units for people."""
    return Message("texts") if len(lengths) >= MIN_UNITS else Message("chunks of {n} tokens", n=CHUNK_TOKENS)


def describe_intervals(units: str, n_units: int) -> Message:
    """How intervals were computed, or why there are none, for the attributes of a result.

    >>> describe_intervals(Message("texts"), 3)
    'no interval: 3 texts, at least 4 are needed'
    """
    if n_units < MIN_UNITS:
        return too_few_units(units, n_units)
    return Message("bootstrap-t, {resamples:,} resamples of {n} {units}", resamples=RESAMPLES, n=n_units, units=units)


def too_few_units(units: str, n_units: int, min_units: int = MIN_UNITS) -> Message:
    """Why a quantity has no interval."""
    return Message("no interval: {n} {units}, at least {low} are needed", n=n_units, units=units, low=min_units)


def _no_interval(x: Float[Tensor, "*c n"]) -> Interval:
    ends = torch.full(x.shape[:-1], torch.nan, dtype=x.dtype)
    return ends, ends.clone()
