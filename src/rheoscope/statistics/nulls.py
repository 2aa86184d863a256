"""Null distributions and inference: random draws, z-scores, p-values, corrections and confidence intervals.

random_permutations, random_successors,       draws for null distributions, from a seed
random_rotations
sample_rows                                   a random subset of too many rows
random_rotation_corners, random_signs         the same if a corner of a rotation, or a sign, is enough
z_scores                                      distance from the null in standard deviations
p_values, student_p_values, pooled_p_values   two-sided p-values from draws
sign_test_p_values                            two-sided p-values of paired comparisons
q_values, holm_p_values                       false discovery rate; family-wise error rate
bootstrap_interval, bootstrap_means           intervals of a mean by resampling texts (chunks, prompts)
student_interval, median_interval             intervals of a mean (Student's t) and of a median (order statistics)
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from rheoscope.messages.message import Message

RESAMPLES = 2000
CHUNK_TOKENS = 32
"""Tokens per bootstrap unit if there are few texts."""
TAIL_SWITCH = 1 - 1e-6
"""Above this central probability of Student's t the tail is summed directly: 1 − p would lose six digits."""
MIN_UNITS = 5
"""The smallest number of units for a bootstrap."""
Interval = tuple[Float[Tensor, "*c"], Float[Tensor, "*c"]]


def random_permutations(n: int, draws: int, seed: int) -> Int[Tensor, "draw n"]:
    """Random permutations of n things, reproducible by the seed.

    >>> random_permutations(3, 2, seed=0).sort(-1).values.tolist()
    [[0, 1, 2], [0, 1, 2]]
    """
    generator = Generator().manual_seed(seed)
    orders = [torch.randperm(n, generator=generator) for _ in range(draws)]
    return torch.stack(orders) if orders else torch.empty(0, n, dtype=torch.long)


def sample_rows(n: int, max_rows: int | None, seed: int, device: torch.device | None = None) -> Int[Tensor, " m"]:
    """Row indices: all n, or `max_rows` of them sampled uniformly without replacement, in ascending order.

    >>> sample_rows(3, None, seed=0).tolist(), len(sample_rows(100, 8, seed=0))
    ([0, 1, 2], 8)
    """
    if max_rows is None or n <= max_rows:
        return torch.arange(n, device=device)
    return torch.randperm(n, generator=Generator().manual_seed(seed))[:max_rows].sort().values.to(device)


def random_successors(n: int, draws: int, seed: int) -> Int[Tensor, "draw m"]:
    """The successor of every position but the last, in a path from the first to the last through all others in random order.

    As in the text itself, no position follows itself and both ends are fixed. With `random_permutations` a position would
    sometimes be its own successor, which never happens in a text.

    >>> random_successors(4, 1, seed=0).tolist() in ([[1, 2, 3]], [[2, 3, 1]])
    True
    """
    inner = random_permutations(max(n - 2, 0), draws, seed) + 1
    first, last = torch.zeros(draws, 1, dtype=torch.long), torch.full((draws, 1), n - 1)
    path = torch.cat([first, inner, last], 1)[:, : max(n, 1)]
    return torch.empty(draws, max(n - 1, 0), dtype=torch.long).scatter_(1, path[:, :-1], path[:, 1:])


def random_rotations(
    count: int, width: int, generator: Generator, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "count d d"]:
    """Uniformly distributed (Haar) orthogonal matrices, drawn on the CPU: no gauge changes their distribution.

    >>> Q = random_rotations(2, 3, Generator().manual_seed(0))
    >>> torch.allclose(Q @ Q.mT, torch.eye(3).expand(2, 3, 3), atol=1e-6)
    True
    """
    gaussian = torch.randn(count, width, width, generator=generator)
    Q, R = torch.linalg.qr(gaussian.to(torch.promote_types(dtype, torch.float32)))  # LAPACK has no half precision
    return (Q * R.diagonal(dim1=-2, dim2=-1).sign()[:, None]).to(dtype)  # without the sign the draws are not Haar


def random_rotation_corners(count: int, rank: int, width: int, generator: Generator) -> Float[Tensor, "count r r"]:
    """The leading r × r corners of Haar rotations, without the rest: UᵀQV for orthonormal U, V (width, rank).

    The columns of an orthonormalised Gaussian matrix (width, rank) are Haar. The rows below the corner matter only through
    their inner products, which are drawn directly (Bartlett).

    >>> W = random_rotation_corners(2, 3, 3, Generator().manual_seed(0))
    >>> torch.allclose(W @ W.mT, torch.eye(3).expand(2, 3, 3), atol=1e-5)
    True
    """
    corner, n_below = torch.randn(count, rank, rank, generator=generator), width - rank
    if n_below < rank:
        lower_rows = torch.randn(count, n_below, rank, generator=generator)
    else:
        degrees_of_freedom = torch.arange(n_below, n_below - rank, -1.0).expand(count, rank).contiguous()
        lengths = (2 * torch._standard_gamma(degrees_of_freedom / 2, generator=generator)).sqrt()
        lower_rows = torch.randn(count, rank, rank, generator=generator).triu(1) + torch.diag_embed(lengths)
    gaussian_columns = torch.cat([corner, lower_rows], -2).double()
    triangle = torch.linalg.cholesky(gaussian_columns.mT @ gaussian_columns, upper=True)
    return torch.linalg.solve_triangular(triangle, corner.double(), upper=True, left=False).float()


def random_signs(count: int, draws: int, generator: Generator) -> Float[Tensor, "draw n"]:
    """Rows of random signs 1 and −1, for a statistic whose null distribution is symmetric.

    >>> sorted(set(random_signs(9, 9, Generator().manual_seed(0)).flatten().tolist()))
    [-1.0, 1.0]
    """
    return 2.0 * torch.randint(2, (draws, count), generator=generator) - 1


# Distance from the null


def z_scores(
    observed: Float[Tensor, "*h"], null_mean: Float[Tensor, "*h"], null_sd: Float[Tensor, "*h"]
) -> Float[Tensor, "*h"]:
    """(observed − mean) / sd; NaN if the null has no spread.

    >>> z_scores(torch.tensor([3.0, 1.0]), torch.tensor([1.0, 1.0]), torch.tensor([2.0, 0.0])).tolist()
    [1.0, nan]
    """
    return torch.where(null_sd > 0, (observed - null_mean) / torch.where(null_sd > 0, null_sd, 1), torch.nan)


def p_values(observed: Float[Tensor, "*h"], null_draws: Float[Tensor, "draw *h"]) -> Float[Tensor, "*h"]:
    """The two-sided p-value of each number: how often a draw lies at least as far from the median of the draws.

    The number itself counts as a draw, so p is at least 1/(n + 1) for n draws. NaN without a number or without draws.

    >>> round(float(p_values(torch.tensor(9.0), torch.tensor([0.0, 1.0, 2.0, 3.0]))), 3)
    0.2
    """
    if not len(null_draws):
        return torch.full_like(observed, torch.nan)
    median = null_draws.quantile(0.5, 0)
    observed_deviation, null_deviations = (observed - median).abs(), (null_draws - median).abs()
    p = (1 + (null_deviations >= observed_deviation * (1 - 1e-12)).sum(0)) / (len(null_draws) + 1)
    return torch.where(observed.isnan() | median.isnan(), torch.nan, p.to(observed.dtype))


def student_p_values(observed: Float[Tensor, "*h"], null_draws: Float[Tensor, "draw *h"]) -> Float[Tensor, "*h"]:
    """The probability that one more draw lies as far from the mean of the draws: two-sided, by Student's t.

    For sums of many terms, whose draws are nearly normal. NaN if the draws have no spread or are fewer than 3.

    >>> round(float(student_p_values(torch.tensor(4.0), torch.tensor([-1.0, 0.0, 1.0]))), 3)
    0.074
    """
    if len(null_draws) < 3:
        return torch.full_like(observed, torch.nan)
    mean, sd = null_draws.mean(0), null_draws.std(0)
    t = (observed - mean) / torch.where(sd > 1e-9 * null_draws.abs().amax(0), sd, torch.nan)
    return student_two_sided_p(t / math.sqrt(1 + 1 / len(null_draws)), len(null_draws) - 1)


def pooled_p_values(observed: Float[Tensor, "*h"], null_draws: Float[Tensor, "draw *h"]) -> Float[Tensor, "*h"]:
    """p-values of many heads at once from the pooled draws of all heads; each draw is studentised by the others of its head.

    A few draws per head then resolve far tails, down to 1/(draws · heads + 1). Two-sided; NaN if a head's draws have no
    spread.

    **Source** pooling of studentised draws: Tusher, Tibshirani and Chu 2001.

    >>> draws = torch.randn(20, 50, generator=Generator().manual_seed(0))
    >>> round(1 / float(pooled_p_values(torch.full((50,), 9.0), draws)[0]))
    1001
    """
    n = len(null_draws)
    if n < 3:
        return torch.full_like(observed, torch.nan)
    mean, square_sum = null_draws.mean(0), (null_draws - null_draws.mean(0)).square().sum(0)
    sd = (square_sum / (n - 1)).sqrt()
    t = (observed - mean) / (sd * math.sqrt(1 + 1 / n))
    # leaving a draw out moves the mean by deviation/(n − 1) and lowers the sum of squares by n/(n − 1) · deviation²
    deviation = null_draws - mean
    leave_one_out_sd = ((square_sum - deviation.square() * n / (n - 1)).clamp(min=0) / (n - 2)).sqrt()
    null_t = deviation * n / (n - 1) / (leave_one_out_sd * math.sqrt(1 + 1 / (n - 1)))
    usable = (sd > 1e-12 * null_draws.abs().amax(0)).expand_as(null_draws) & null_t.isfinite()
    sorted_null_t = null_t[usable].abs().sort().values
    n_beyond = len(sorted_null_t) - torch.searchsorted(sorted_null_t, t.abs().contiguous(), side="left")
    return torch.where(usable.any(0) & t.isfinite(), (1 + n_beyond) / (len(sorted_null_t) + 1), torch.nan).to(
        observed.dtype
    )


def normal_two_sided_p(z: Float[Tensor, "*h"]) -> Float[Tensor, "*h"]:
    """The probability that a normal draw lies at least as far from 0 as z.

    >>> round(float(normal_two_sided_p(torch.tensor(1.96))), 3)
    0.05
    """
    return torch.erfc(z.abs() / math.sqrt(2))


def student_two_sided_p(t: Float[Tensor, "*h"], degrees_of_freedom: int) -> Float[Tensor, "*h"]:
    """The two-sided p-value of Student's t with `degrees_of_freedom` = ν.

    **Formula** with θ = atan(|t|/√ν): 1 minus a sum of ν/2 terms (Abramowitz and Stegun 26.7.3 and 26.7.4). In the far tail
    all following terms are summed instead, which loses no digits. SciPy has this function, but its import takes longer than
    an analysis of a text.

    >>> round(float(student_two_sided_p(torch.tensor(2.09), 19)), 2), f"{float(student_two_sided_p(torch.tensor(80.0), 11)):.1g}"
    (0.05, '1e-16')
    """
    is_odd, angle = degrees_of_freedom % 2, (t.double().abs() / math.sqrt(degrees_of_freedom)).atan()
    term = angle.sin() * (angle.cos() if is_odd else 1)
    total, cos_squared = torch.zeros_like(term), angle.cos().square()
    for k in range(2 + is_odd, degrees_of_freedom + 1, 2):
        total = total + term
        term = term * cos_squared * ((k - 1) / k)
    prefactor = 2 / math.pi if is_odd else 1
    central_probability, k = (angle + total) * prefactor if is_odd else total, degrees_of_freedom
    term, tail_probability = torch.where(central_probability > TAIL_SWITCH, term, 0), torch.zeros_like(term)
    while bool((term > 1e-17 * tail_probability).any()):
        tail_probability, k = tail_probability + term, k + 2
        term = term * cos_squared * ((k - 1) / k)
    return torch.where(central_probability > TAIL_SWITCH, tail_probability * prefactor, 1 - central_probability).to(t)


def normal_one_sided_p(z: Float[Tensor, "*h"]) -> Float[Tensor, "*h"]:
    """The probability that a normal draw is at least z."""
    return torch.special.erfc(z / math.sqrt(2)) / 2


def q_values(p: Float[Tensor, "*h"]) -> Float[Tensor, "*h"]:
    """The smallest false discovery rate at which each p-value would be significant; NaN stays NaN.

    **Source** Benjamini and Hochberg 1995.

    >>> [round(q, 3) for q in q_values(torch.tensor([0.01, 0.02, 0.6])).tolist()]
    [0.03, 0.03, 0.6]
    """
    return q_values_per_row(p.flatten()[None])[0].reshape(p.shape)


def q_values_per_row(p: Float[Tensor, "t h"]) -> Float[Tensor, "t h"]:
    """The same for every row separately.

    >>> q_values_per_row(torch.tensor([[0.01, 0.02, torch.nan], [0.5, 0.01, 0.6]])).tolist()[0][:2]
    [0.019999999552965164, 0.019999999552965164]
    """
    sorted_p, order = torch.where(p.isnan(), torch.inf, p).sort(-1)  # NaN comes last
    ranks = torch.arange(1, p.shape[-1] + 1, device=p.device)
    scaled_p = sorted_p * (~p.isnan()).sum(-1, keepdim=True) / ranks
    monotone_q = scaled_p.flip(-1).cummin(-1).values.flip(-1).clamp(max=1)
    return torch.where(p.isnan(), torch.nan, torch.empty_like(monotone_q).scatter_(-1, order, monotone_q)).to(p.dtype)


def holm_p_values(p: Float[Tensor, "*h"]) -> Float[Tensor, "*h"]:
    """Adjusted p-values that control the family-wise error rate; NaN stays NaN.

    **Source** Holm 1979. `q_values` controls the false discovery rate, which is weaker.

    >>> [round(p, 3) for p in holm_p_values(torch.tensor([0.01, 0.02, 0.6])).tolist()]
    [0.03, 0.04, 0.6]
    """
    is_number = ~p.isnan()
    order = p[is_number].argsort()
    monotone_p = (p[is_number][order] * torch.arange(len(order), 0, -1, device=p.device)).cummax(0).values.clamp(max=1)
    adjusted = p.clone()
    adjusted[is_number] = torch.empty_like(monotone_p).index_copy_(0, order, monotone_p)
    return adjusted


def sign_test_p_values(n_behind: Int[Tensor, "*h"], n_ahead: Int[Tensor, "*h"]) -> Float[Tensor, "*h"]:
    """The two-sided sign test: how often coin tosses split at least as unevenly as `n_behind` and `n_ahead`.

    >>> round(float(sign_test_p_values(torch.tensor(0), torch.tensor(6))), 5), float(sign_test_p_values(torch.tensor(2), torch.tensor(2)))
    (0.03125, 1.0)
    """
    n, larger_count = n_behind + n_ahead, torch.maximum(n_behind, n_ahead)
    counts = torch.arange(int(n.max()) + 1 if n.numel() else 1, dtype=torch.float64, device=n.device)
    possible_counts, n_pairs = counts[counts <= n[..., None].amax()], n[..., None].double()
    log_combinations = (
        torch.lgamma(n_pairs + 1)
        - torch.lgamma(possible_counts + 1)
        - torch.lgamma((n_pairs - possible_counts).clamp(min=0) + 1)
    )
    is_in_tail = (possible_counts >= larger_count[..., None]) & (possible_counts <= n_pairs)
    tail = torch.where(is_in_tail, (log_combinations - n_pairs * math.log(2)).exp(), 0.0).sum(-1)
    return (2 * tail).clamp(max=1.0)


# Intervals


def student_interval(x: Float[Tensor, "*c n"]) -> Interval:
    """The 95 % confidence interval of a mean of n numbers, by Student's t; NaN for fewer than 2.

    >>> [round(float(end), 3) for end in student_interval(torch.tensor([1.0, 2.0, 3.0]))]
    [-0.484, 4.484]
    """
    n = x.shape[-1]
    if n < 2:
        return torch.full_like(x.mean(-1), torch.nan), torch.full_like(x.mean(-1), torch.nan)
    low, high = 0.0, 1e3
    for _ in range(60):  # bisection for the quantile with 5 % beyond
        midpoint = (low + high) / 2
        low, high = (
            (midpoint, high)
            if float(student_two_sided_p(torch.tensor(midpoint).double(), n - 1)) > 0.05
            else (low, midpoint)
        )
    half_width = high * x.std(-1) / math.sqrt(n)
    return x.mean(-1) - half_width, x.mean(-1) + half_width


def median_interval(x: Float[Tensor, "*c n"]) -> Interval:
    """A confidence interval of at least 95 % for a median, between two order statistics; infinities count. NaN for fewer than 6.

    >>> [float(end) for end in median_interval(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, torch.inf]))]
    [1.0, inf]
    """
    n, sorted_x = x.shape[-1], x.sort(-1).values
    order_index = torch.arange(n)
    is_covered = (sign_test_p_values(order_index, n - order_index) <= 0.05) & (order_index < n / 2)
    if not bool(is_covered.any()):
        return torch.full_like(sorted_x[..., 0], torch.nan), torch.full_like(sorted_x[..., 0], torch.nan)
    low_index = int(order_index[is_covered].max())
    return sorted_x[..., low_index], sorted_x[..., n - 1 - low_index]


def bootstrap_interval(unit_sums: Float[Tensor, "*c u"], unit_sizes: list[int], generator: Generator) -> Interval:
    """The 95 % bootstrap interval of a mean over units with known sums and sizes; NaN for too few units."""
    return percentile_interval(bootstrap_means(unit_sums, unit_sizes, generator))


def bootstrap_means(
    unit_sums: Float[Tensor, "*c u"], unit_sizes: list[int], generator: Generator
) -> Float[Tensor, "*c resamples"]:
    """The mean over resampled units, `RESAMPLES` times, with the same units for all rows; NaN for too few units."""
    if len(unit_sizes) < MIN_UNITS:
        return torch.full((*unit_sums.shape[:-1], 1), torch.nan, dtype=unit_sums.dtype)
    sampled_units = torch.randint(len(unit_sizes), (RESAMPLES, len(unit_sizes)), generator=generator)
    multiplicity = torch.zeros(sampled_units.shape, dtype=unit_sums.dtype).scatter_add_(
        1, sampled_units, torch.ones(sampled_units.shape, dtype=unit_sums.dtype)
    )
    return unit_sums @ multiplicity.mT / (multiplicity @ torch.tensor(unit_sizes, dtype=unit_sums.dtype))


def percentile_interval(means: Float[Tensor, "*c resamples"]) -> Interval:
    """The 2.5 % and 97.5 % quantiles."""
    low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=means.dtype), -1)
    return low, high


def bootstrap_unit_sizes(lengths: list[int]) -> list[int]:
    """Tokens of every bootstrap unit: whole texts, or chunks of each text if there are few texts."""
    if len(lengths) >= MIN_UNITS:
        return lengths
    return [min(CHUNK_TOKENS, length - start) for length in lengths for start in range(0, length, CHUNK_TOKENS)]


def unit_name(lengths: list[int]) -> str:
    """The name of the bootstrap units for people."""
    return Message("texts") if len(lengths) >= MIN_UNITS else Message("chunks of {n} tokens", n=CHUNK_TOKENS)
