"""Null distributions and tests: random draws, z-scores, p-values and corrections for many tests.

random_permutations, random_successors,       draws for null distributions, from a seed
random_rotations
sample_rows                                   a random subset of too many rows
random_rotation_corners, random_signs         the same if a corner of a rotation, or a sign, is enough
z_scores                                      distance from the null in standard deviations
p_values, pooled_p_values                     two-sided p-values from the order of draws, at least 1/(n + 1)
moment_p_values                               two-sided p-values from the moments of draws, also far beyond all draws
sign_test_p_values                            two-sided p-values of paired comparisons
q_values, holm_p_values                       false discovery rate; family-wise error rate
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

TIE_WIDTH = 1e-3
"""Draws of a null that are this close to a number, in standard deviations, are partly ties."""
TAIL_SWITCH = 1 - 1e-6
"""Above this central probability of Student's t the tail is summed directly: 1 − p would lose six digits."""


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
    count: int,
    width: int,
    generator: Generator,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Float[Tensor, "count d d"]:
    """Uniformly distributed (Haar) orthogonal matrices: no gauge changes their distribution.

    Random numbers come from the CPU, so that every device has the same rotations, up to rounding.

    >>> Q = random_rotations(2, 3, Generator().manual_seed(0))
    >>> torch.allclose(Q @ Q.mT, torch.eye(3).expand(2, 3, 3), atol=1e-6)
    True
    """
    on_gpu = device is not None and device.type == "cuda"
    gaussian = torch.randn(count, width, width, generator=generator, pin_memory=on_gpu)
    gaussian = gaussian.to(device, torch.promote_types(dtype, torch.float32), non_blocking=on_gpu)
    return (orthonormal_by_cholesky if gaussian.is_cuda else orthonormal_by_qr)(gaussian).to(dtype)


def orthonormal_by_qr(G: Float[Tensor, "*c d d"]) -> Float[Tensor, "*c d d"]:
    """The Q of G = QR in which the diagonal of R is positive. Without the signs, Q is not Haar."""
    Q, R = torch.linalg.qr(G)
    return Q * R.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]


def orthonormal_by_cholesky(G: Float[Tensor, "*c d d"]) -> Float[Tensor, "*c d d"]:
    """The same from GᵀG = RᵀR in double precision. On a GPU it is ten times as fast as QR, which works column by column.

    >>> G = torch.randn(2, 5, 5, generator=Generator().manual_seed(0))
    >>> torch.allclose(orthonormal_by_cholesky(G), orthonormal_by_qr(G), atol=1e-5)
    True
    """
    columns = G.double()
    R_transposed, _ = torch.linalg.cholesky_ex(columns.mT @ columns)
    return torch.linalg.solve_triangular(R_transposed.mT, columns, upper=True, left=False).to(G.dtype)


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


def moment_p_values(observed: Float[Tensor, "*h"], null_draws: Float[Tensor, "draw *h"]) -> Float[Tensor, "*h"]:
    """The probability that one more draw lies as far from the mean of the draws, two-sided, from the moments of the draws.

    **Formula** The larger of two p-values of t = (x − mean)/(sd √(1 + 1/n)): Student's, and that of a gamma law with skewness
    (1 + 10/√n) g sign(t) + √(6/n), if it is positive. The sample skewness g of n draws is far below that of a long tail, and
    √(6/n) is its standard error for normal draws. Counts are skewed: Student's p alone is too small there by a factor of ten.

    NaN if the draws have no spread or are fewer than 3.

    >>> round(float(moment_p_values(torch.tensor(4.0), torch.tensor([-1.0, 0.0, 1.0]))), 3)
    0.074
    >>> draws = torch.distributions.Exponential(torch.tensor(1.0)).icdf(torch.arange(1, 100) / 100)
    >>> round(float(moment_p_values(torch.tensor(6.0), draws)), 2)
    0.01
    """
    n = len(null_draws)
    if n < 3:
        return torch.full_like(observed, torch.nan)
    mean, sd = null_draws.mean(0), null_draws.std(0)
    sd = torch.where(sd > 1e-9 * null_draws.abs().amax(0), sd, torch.nan)
    t, skewness = (observed - mean) / (sd * math.sqrt(1 + 1 / n)), ((null_draws - mean) / sd).pow(3).mean(0)
    student_p = student_two_sided_p(t, n - 1)
    outer_skewness = (1 + 10 / math.sqrt(n)) * skewness * t.sign() + math.sqrt(6 / n)
    gamma_p = (2 * gamma_tail(t.abs(), outer_skewness.clamp(min=1e-3))).clamp(max=1)
    return torch.where(outer_skewness > 1e-3, torch.maximum(student_p, gamma_p), student_p)


def gamma_tail(z: Float[Tensor, "*h"], skewness: Float[Tensor, "*h"]) -> Float[Tensor, "*h"]:
    """The probability that a gamma law with mean 0, standard deviation 1 and this positive skewness exceeds z ≥ 0.

    >>> round(float(gamma_tail(torch.tensor(3.0), torch.tensor(2.0))), 4)  # exponential: exp(−4)
    0.0183
    """
    shape = (4 / skewness.double().square()).to(z.device)
    return torch.special.gammaincc(shape, shape + z.double() * shape.sqrt()).to(z.dtype)


def pooled_p_values(observed: Float[Tensor, "*h"], null_draws: Float[Tensor, "draw *h"]) -> Float[Tensor, "*h"]:
    """p-values of many heads at once from the pooled draws of all heads; each draw is studentised by the others of its head.

    A few draws per head then resolve far tails, down to 1/(draws · heads + 1). Two-sided; NaN if a head's draws have no
    spread. A draw up to `TIE_WIDTH` standard deviations closer to the null counts partly, so that rounding errors, which
    depend on the number of threads, do not move p.

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
    n_beyond = count_at_least(sorted_null_t.double(), t.abs().double())
    return torch.where(usable.any(0) & t.isfinite(), (1 + n_beyond) / (len(sorted_null_t) + 1), torch.nan).to(
        observed.dtype
    )


def count_at_least(sorted_values: Float[Tensor, " n"], x: Float[Tensor, "*h"]) -> Float[Tensor, "*h"]:
    """How many of the ascending values are at least x. A value up to `TIE_WIDTH` below x counts partly.

    >>> count_at_least(torch.tensor([1.0, 2.0, 4.0]).double(), torch.tensor([0.5, 4.0, 9.0]).double()).tolist()
    [3.0, 1.0, 0.0]
    """
    running_sums = torch.cat([sorted_values.new_zeros(1), sorted_values.cumsum(0)])
    window_start = x.contiguous() - TIE_WIDTH
    first, stop = (torch.searchsorted(sorted_values, end, side="left") for end in (window_start, x.contiguous()))
    partial_count = (running_sums[stop] - running_sums[first] - (stop - first) * window_start) / TIE_WIDTH
    return len(sorted_values) - stop + partial_count


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
