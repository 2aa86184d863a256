"""Chance in one place: what is drawn for nulls and intervals, and how far from chance a number lies.

permutations, successors,     what nulls are made of, from a seed
rotations
drawn_rows                    what is looked at of what is too much
corners, signs                the same where a corner of a rotation is enough, or a sign
z_scores                      how far from the null
p_values, student_p, pooled_p how often chance goes as far
sign_p                        the same of pairs, where all that counts is who is ahead
q_values, holm                how sure after many tests (the share of false finds; whether there is any)
bootstrap, bootstrap_means    intervals of a mean when texts (chunks, prompts) are drawn anew
student_ends, median_ends     intervals of a mean by Student's law, of a median by counting
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

RESAMPLES = 2000
CHUNK = 32
"""Tokens of a unit where there are few texts."""
NEARLY_ALL = 1 - 1e-6
"""Of Student's law: what is beyond has lost six digits when it is taken from 1."""
FEWEST = 5
"""Units below which a bootstrap says nothing."""
Ends = tuple[Float[Tensor, "*c"], Float[Tensor, "*c"]]


def permutations(n: int, draws: int, seed: int) -> Int[Tensor, "draw n"]:
    """Orders of n things drawn at random, the same ones for the same seed.

    >>> permutations(3, 2, seed=0).sort(-1).values.tolist()
    [[0, 1, 2], [0, 1, 2]]
    """
    draw = Generator().manual_seed(seed)
    orders = [torch.randperm(n, generator=draw) for _ in range(draws)]
    return torch.stack(orders) if orders else torch.empty(0, n, dtype=torch.long)


def drawn_rows(n: int, most: int | None, seed: int, device: torch.device | None = None) -> Int[Tensor, " m"]:
    """Places of things that are looked at: all n, or of more than `most` so many, drawn evenly and in their order.

    >>> drawn_rows(3, None, seed=0).tolist(), len(drawn_rows(100, 8, seed=0))
    ([0, 1, 2], 8)
    """
    if most is None or n <= most:
        return torch.arange(n, device=device)
    return torch.randperm(n, generator=Generator().manual_seed(seed))[:most].sort().values.to(device)


def successors(n: int, draws: int, seed: int) -> Int[Tensor, "draw m"]:
    """Which place comes after each but the last of n when all between the first and the last stand in another order.

    As in the text itself nothing comes after itself, and what begins and what ends it stay: with `permutations` a place would
    now and then be followed by itself, which no text does.

    >>> successors(4, 1, seed=0).tolist() in ([[1, 2, 3]], [[2, 3, 1]])
    True
    """
    inner = permutations(max(n - 2, 0), draws, seed) + 1
    first, last = torch.zeros(draws, 1, dtype=torch.long), torch.full((draws, 1), n - 1)
    path = torch.cat([first, inner, last], 1)[:, : max(n, 1)]
    return torch.empty(draws, max(n - 1, 0), dtype=torch.long).scatter_(1, path[:, :-1], path[:, 1:])


def rotations(
    count: int, width: int, generator: Generator, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "count d d"]:
    """Orthogonal maps of a space drawn evenly (Haar), on the CPU: no gauge moves them.

    >>> Q = rotations(2, 3, Generator().manual_seed(0))
    >>> torch.allclose(Q @ Q.mT, torch.eye(3).expand(2, 3, 3), atol=1e-6)
    True
    """
    drawn = torch.randn(count, width, width, generator=generator)
    Q, R = torch.linalg.qr(drawn.to(torch.promote_types(dtype, torch.float32)))  # LAPACK knows no half precision
    return (Q * R.diagonal(dim1=-2, dim2=-1).sign()[:, None]).to(dtype)  # without the sign QR does not draw evenly


def corners(count: int, rank: int, width: int, generator: Generator) -> Float[Tensor, "count r r"]:
    """The first rows and columns of rotations drawn evenly, without the rest of them: UᵀQV of orthonormal U, V (width, rank).

    The columns of a Gaussian matrix (width, rank) made orthonormal are even; of the rows below the corner their inner products
    are all that counts, and those are drawn as they are (Bartlett).

    >>> W = corners(2, 3, 3, Generator().manual_seed(0))
    >>> torch.allclose(W @ W.mT, torch.eye(3).expand(2, 3, 3), atol=1e-5)
    True
    """
    corner, below = torch.randn(count, rank, rank, generator=generator), width - rank
    if below < rank:
        rest = torch.randn(count, below, rank, generator=generator)
    else:
        degrees = torch.arange(below, below - rank, -1.0).expand(count, rank).contiguous()
        lengths = (2 * torch._standard_gamma(degrees / 2, generator=generator)).sqrt()
        rest = torch.randn(count, rank, rank, generator=generator).triu(1) + torch.diag_embed(lengths)
    whole = torch.cat([corner, rest], -2).double()
    triangle = torch.linalg.cholesky(whole.mT @ whole, upper=True)
    return torch.linalg.solve_triangular(triangle, corner.double(), upper=True, left=False).float()


def signs(count: int, draws: int, generator: Generator) -> Float[Tensor, "draw n"]:
    """Rows of 1 and −1, evenly drawn: a number that is as often as large below its null as above it, turned over at random.

    >>> sorted(set(signs(9, 9, Generator().manual_seed(0)).flatten().tolist()))
    [-1.0, 1.0]
    """
    return 2.0 * torch.randint(2, (draws, count), generator=generator) - 1


# How far from chance


def z_scores(own: Float[Tensor, "*h"], mean: Float[Tensor, "*h"], sd: Float[Tensor, "*h"]) -> Float[Tensor, "*h"]:
    """(own − mean) / sd; NaN where the null has no spread, as where there is none: it cannot say how far is far.

    >>> z_scores(torch.tensor([3.0, 1.0]), torch.tensor([1.0, 1.0]), torch.tensor([2.0, 0.0])).tolist()
    [1.0, nan]
    """
    return torch.where(sd > 0, (own - mean) / torch.where(sd > 0, sd, 1), torch.nan)


def p_values(own: Float[Tensor, "*h"], drawn: Float[Tensor, "draw *h"]) -> Float[Tensor, "*h"]:
    """How often chance lies as far from its own middle as the number does, the number counted with the draws.

    From n draws it is never below 1/(n + 1). Far is measured from the median of the draws, on either side; NaN where there
    is no number or no draw.

    >>> round(float(p_values(torch.tensor(9.0), torch.tensor([0.0, 1.0, 2.0, 3.0]))), 3)
    0.2
    """
    if not len(drawn):
        return torch.full_like(own, torch.nan)
    middle = drawn.quantile(0.5, 0)
    far, reach = (own - middle).abs(), (drawn - middle).abs()
    p = (1 + (reach >= far * (1 - 1e-12)).sum(0)) / (len(drawn) + 1)
    return torch.where(own.isnan() | middle.isnan(), torch.nan, p.to(own.dtype))


def student_p(own: Float[Tensor, "*h"], drawn: Float[Tensor, "draw *h"]) -> Float[Tensor, "*h"]:
    """How often one more draw would lie as far from the mean of the draws: two-sided, by Student's law.

    For numbers that are sums of many, whose draws are near a normal law. NaN where draws have no spread, or are fewer than 3.

    >>> round(float(student_p(torch.tensor(4.0), torch.tensor([-1.0, 0.0, 1.0]))), 3)
    0.074
    """
    if len(drawn) < 3:
        return torch.full_like(own, torch.nan)
    mean, spread = drawn.mean(0), drawn.std(0)
    t = (own - mean) / torch.where(spread > 1e-9 * drawn.abs().amax(0), spread, torch.nan)
    return student(t / math.sqrt(1 + 1 / len(drawn)), len(drawn) - 1)


def pooled_p(own: Float[Tensor, "*h"], drawn: Float[Tensor, "draw *h"]) -> Float[Tensor, "*h"]:
    """p of many heads at once, each beside the draws of all: every draw is measured against the others of its head.

    A few draws a head then reach far into the tails, never below 1/(draws · heads + 1). Two-sided; NaN where a head's draws
    have no spread.

    **Source** pooling of studentised draws: Tusher, Tibshirani and Chu 2001.

    >>> drawn = torch.randn(20, 50, generator=Generator().manual_seed(0))
    >>> round(1 / float(pooled_p(torch.full((50,), 9.0), drawn)[0]))
    1001
    """
    n = len(drawn)
    if n < 3:
        return torch.full_like(own, torch.nan)
    mean, square = drawn.mean(0), (drawn - drawn.mean(0)).square().sum(0)
    spread = (square / (n - 1)).sqrt()
    t = (own - mean) / (spread * math.sqrt(1 + 1 / n))
    off = (
        drawn - mean
    )  # a draw against the others: their mean lies off/(n − 1) further, their squares are less by n/(n − 1) off²
    rest = ((square - off.square() * n / (n - 1)).clamp(min=0) / (n - 2)).sqrt()
    others = off * n / (n - 1) / (rest * math.sqrt(1 + 1 / (n - 1)))
    usable = (spread > 1e-12 * drawn.abs().amax(0)).expand_as(drawn) & others.isfinite()
    reach = others[usable].abs().sort().values
    beyond = len(reach) - torch.searchsorted(reach, t.abs().contiguous(), side="left")
    return torch.where(usable.any(0) & t.isfinite(), (1 + beyond) / (len(reach) + 1), torch.nan).to(own.dtype)


def two_sided(z: Float[Tensor, "*h"]) -> Float[Tensor, "*h"]:
    """How often a normal draw lies as far from 0 as z.

    >>> round(float(two_sided(torch.tensor(1.96))), 3)
    0.05
    """
    return torch.erfc(z.abs() / math.sqrt(2))


def student(t: Float[Tensor, "*h"], freedom: int) -> Float[Tensor, "*h"]:
    """How often a number lies as far from 0 as t, where the spread is that of freedom + 1 draws (Student's law, two-sided).

    **Formula** with θ = atan(|t|/√ν) a sum of ν/2 terms (Abramowitz and Stegun 26.7.3 and 26.7.4), taken from 1; where next to nothing
    is left of it, the sum of all terms that follow, which is the same without a loss of digits. SciPy has it too, and takes longer to
    import than a text takes to be answered.

    >>> round(float(student(torch.tensor(2.09), 19)), 2), f"{float(student(torch.tensor(80.0), 11)):.1g}"
    (0.05, '1e-16')
    """
    odd, angle = freedom % 2, (t.double().abs() / math.sqrt(freedom)).atan()
    term = angle.sin() * (angle.cos() if odd else 1)
    total, square = torch.zeros_like(term), angle.cos().square()
    for k in range(2 + odd, freedom + 1, 2):
        total = total + term
        term = term * square * ((k - 1) / k)
    share = 2 / math.pi if odd else 1
    within, k = (angle + total) * share if odd else total, freedom
    term, beyond = torch.where(within > NEARLY_ALL, term, 0), torch.zeros_like(term)
    while bool((term > 1e-17 * beyond).any()):
        beyond, k = beyond + term, k + 2
        term = term * square * ((k - 1) / k)
    return torch.where(within > NEARLY_ALL, beyond * share, 1 - within).to(t)


def one_sided(z: Float[Tensor, "*h"]) -> Float[Tensor, "*h"]:
    """How often a normal draw is at least z."""
    return torch.special.erfc(z / math.sqrt(2)) / 2


def q_values(p: Float[Tensor, "*h"]) -> Float[Tensor, "*h"]:
    """The smallest share of false finds at which each p-value would be called a find; NaN stays NaN.

    **Source** Benjamini and Hochberg 1995.

    >>> [round(q, 3) for q in q_values(torch.tensor([0.01, 0.02, 0.6])).tolist()]
    [0.03, 0.03, 0.6]
    """
    return q_values_of_rows(p.flatten()[None])[0].reshape(p.shape)


def q_values_of_rows(p: Float[Tensor, "t h"]) -> Float[Tensor, "t h"]:
    """The same of every row by itself.

    >>> q_values_of_rows(torch.tensor([[0.01, 0.02, torch.nan], [0.5, 0.01, 0.6]])).tolist()[0][:2]
    [0.019999999552965164, 0.019999999552965164]
    """
    line, order = torch.where(p.isnan(), torch.inf, p).sort(-1)  # what is no number comes last
    places = torch.arange(1, p.shape[-1] + 1, device=p.device)
    steps = line * (~p.isnan()).sum(-1, keepdim=True) / places
    falling = steps.flip(-1).cummin(-1).values.flip(-1).clamp(max=1)
    return torch.where(p.isnan(), torch.nan, torch.empty_like(falling).scatter_(-1, order, falling)).to(p.dtype)


def holm(p: Float[Tensor, "*h"]) -> Float[Tensor, "*h"]:
    """p-values of many tests such that calling all up to 5 % finds gives a false one in at most 5 % of repeats; NaN stays NaN.

    **Source** Holm 1979. `q_values` bounds the share of false ones among the finds, which is less.

    >>> [round(p, 3) for p in holm(torch.tensor([0.01, 0.02, 0.6])).tolist()]
    [0.03, 0.04, 0.6]
    """
    there = ~p.isnan()
    order = p[there].argsort()
    rising = (p[there][order] * torch.arange(len(order), 0, -1, device=p.device)).cummax(0).values.clamp(max=1)
    found = p.clone()
    found[there] = torch.empty_like(rising).index_copy_(0, order, rising)
    return found


def sign_p(behind: Int[Tensor, "*h"], ahead: Int[Tensor, "*h"]) -> Float[Tensor, "*h"]:
    """How often tosses of a coin fall as unevenly as pairs in which one was behind and in which it was ahead (two-sided).

    >>> round(float(sign_p(torch.tensor(0), torch.tensor(6))), 5), float(sign_p(torch.tensor(2), torch.tensor(2)))
    (0.03125, 1.0)
    """
    n, most = behind + ahead, torch.maximum(behind, ahead)
    k = torch.arange(int(n.max()) + 1 if n.numel() else 1, dtype=torch.float64, device=n.device)
    among, whole = k[k <= n[..., None].amax()], n[..., None].double()
    ways = torch.lgamma(whole + 1) - torch.lgamma(among + 1) - torch.lgamma((whole - among).clamp(min=0) + 1)
    counted = (among >= most[..., None]) & (among <= whole)
    tail = torch.where(counted, (ways - whole * math.log(2)).exp(), 0.0).sum(-1)
    return (2 * tail).clamp(max=1.0)


# Intervals


def student_ends(x: Float[Tensor, "*c n"]) -> Ends:
    """The 95 % interval of a mean of n numbers, by Student's law; NaN for fewer than 2.

    >>> [round(float(end), 3) for end in student_ends(torch.tensor([1.0, 2.0, 3.0]))]
    [-0.484, 4.484]
    """
    n = x.shape[-1]
    if n < 2:
        return torch.full_like(x.mean(-1), torch.nan), torch.full_like(x.mean(-1), torch.nan)
    low, high = 0.0, 1e3
    for _ in range(60):  # where 5 % lie beyond
        middle = (low + high) / 2
        low, high = (middle, high) if float(student(torch.tensor(middle).double(), n - 1)) > 0.05 else (low, middle)
    half = high * x.std(-1) / math.sqrt(n)
    return x.mean(-1) - half, x.mean(-1) + half


def median_ends(x: Float[Tensor, "*c n"]) -> Ends:
    """An interval of a median of at least 95 %, from one of the numbers to another; infinite ones count; NaN for fewer than 6.

    >>> [float(end) for end in median_ends(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, torch.inf]))]
    [1.0, inf]
    """
    n, rows = x.shape[-1], x.sort(-1).values
    fewest = torch.arange(n)
    sure = (sign_p(fewest, n - fewest) <= 0.05) & (fewest < n / 2)
    if not bool(sure.any()):
        return torch.full_like(rows[..., 0], torch.nan), torch.full_like(rows[..., 0], torch.nan)
    at = int(fewest[sure].max())
    return rows[..., at], rows[..., n - 1 - at]


def bootstrap(sums: Float[Tensor, "*c u"], sizes: list[int], generator: Generator) -> Ends:
    """The 95 % interval of a mean over units, of which sums and sizes are known, when units are drawn anew; NaN for too few."""
    return percentiles(bootstrap_means(sums, sizes, generator))


def bootstrap_means(
    sums: Float[Tensor, "*c u"], sizes: list[int], generator: Generator
) -> Float[Tensor, "*c resamples"]:
    """The mean over units drawn anew, again and again, the same units for all rows; NaN for too few."""
    if len(sizes) < FEWEST:
        return torch.full((*sums.shape[:-1], 1), torch.nan, dtype=sums.dtype)
    drawn = torch.randint(len(sizes), (RESAMPLES, len(sizes)), generator=generator)
    times = torch.zeros(drawn.shape, dtype=sums.dtype).scatter_add_(1, drawn, torch.ones(drawn.shape, dtype=sums.dtype))
    return sums @ times.mT / (times @ torch.tensor(sizes, dtype=sums.dtype))


def percentiles(means: Float[Tensor, "*c resamples"]) -> Ends:
    """Where the middle 95 % of them begin and end."""
    low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=means.dtype), -1)
    return low, high


def units(lengths: list[int]) -> list[int]:
    """Tokens of every unit that is drawn, text after text: whole texts, or chunks of each where texts are few."""
    if len(lengths) >= FEWEST:
        return lengths
    return [min(CHUNK, length - at) for length in lengths for at in range(0, length, CHUNK)]


def unit_name(lengths: list[int]) -> str:
    """What is drawn anew, in words."""
    return "texts" if len(lengths) >= FEWEST else f"chunks of {CHUNK} tokens"
