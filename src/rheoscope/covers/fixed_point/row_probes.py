"""Sums over one token's rows of a Jacobian, from random orthonormal probes, with a standard error."""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.lower.block_size import block_numel
from rheoscope.covers.fixed_point.layer_map import Cloud, Map
from rheoscope.space.autograd_pullback import pullback_by_autograd

FIRST_PROBES = 8
"""The number of probes before the first look at the error."""
NUMBERS_PER_COORDINATE = 64
"""About how many numbers a layer stores per coordinate of a token for its derivative."""
Statistic = Callable[[Float[Tensor, "*b n"]], Float[Tensor, "*b m"]]


def probe_pullback(T: Map, x: Cloud) -> Callable[[Float[Tensor, "k n d"]], Iterator[Float[Tensor, "c n d"]]]:
    """The pullback of many probes at one cloud, in chunks. T acts once, on as many copies of the cloud as a chunk has probes."""
    graph: list[tuple[Tensor, Tensor]] = []
    chunk_size = max(1, block_numel(x.device) // (NUMBERS_PER_COORDINATE * x.numel()))

    def pull_back(probes: Float[Tensor, "k n d"]) -> Iterator[Float[Tensor, "c n d"]]:
        for chunk in probes.split(chunk_size):
            with torch.enable_grad():
                if not graph or len(graph[0][0]) < len(chunk):
                    copies = x.detach().expand_as(chunk).clone().requires_grad_()
                    graph[:] = [(copies, T(copies))]
                copies, y = graph[0]
                y = y[: len(chunk)]
            yield pullback_by_autograd(y, copies, chunk, retain_graph=True)[: len(chunk)]

    return pull_back


def probe_row(
    T: Map,
    x: Cloud,
    position: int,
    statistic: Statistic,
    tolerance: float,
    max_probes: int | None,
    generator: torch.Generator,
    judged: slice = slice(None),
) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
    """A statistic of the squared norms ‖∂T_i/∂X_j‖² over all tokens j, for i = `position`, and its standard error.

    A probe is a random unit vector u at the output of token i. Its pullback has the squared norms ‖u ∂T_i/∂X_j‖². All probes
    are orthogonal, so as many probes as coordinates give the exact sums. Fewer give a random sample without replacement,
    whose standard error is a jackknife over probes. Probes are added until no error of the `judged` entries exceeds the
    tolerance.
    """
    n, d = x.shape
    limit = d if max_probes is None else min(d, max_probes)
    rotation = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64)).Q.mT.to(x)
    squares = x.new_zeros(0, n, dtype=torch.float64)
    pull_back = probe_pullback(T, x)
    while True:
        n_probes = min(limit, max(2 * len(squares), FIRST_PROBES))
        probes = x.new_zeros(n_probes - len(squares), n, d)
        probes[:, position] = rotation[len(squares) : n_probes]
        squares = torch.cat([squares, *(rows.double().square().sum(-1) for rows in pull_back(probes))])
        errors = jackknife_errors(squares, statistic, d)
        if len(squares) == limit or float(errors[judged].nan_to_num().max()) <= tolerance:
            return statistic(squares.sum(0)), errors


def jackknife_errors(squares: Float[Tensor, "k n"], statistic: Statistic, d: int) -> Float[Tensor, " m"]:
    """The standard error of a statistic of Σ_k squares[k], from leaving out one probe at a time.

    k of d orthonormal probes are a sample without replacement. Their variance is (d − k)/d times that of independent probes
    with the same spread, so it vanishes for k = d.
    """
    k = len(squares)
    if k >= d:
        return torch.zeros_like(statistic(squares.sum(0)))
    if k < 2:
        return torch.full_like(statistic(squares.sum(0)), torch.inf)
    values = statistic(squares.sum(0) - squares)
    variance = (k - 1) * (values - values.mean(0)).square().mean(0)
    return (variance * (d - k) / d).sqrt()
