"""Is the cloud made of flat pieces? Local dimension, angles between tangent spaces of neighbours, and how few pieces cover it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.flow.charts.nerve import nerve
from rheoscope.flow.cloud import select_clouds
from rheoscope.flow.geometry_kept.analysis import nearest_neighbours
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.pair_distances import centred_inner_products, distances
from rheoscope.space.settings import Count, Draws, Fraction, Neighbours, Seed, SpaceName
from rheoscope.space.trace import Trace
from rheoscope.statistics.nulls import random_rotations

if TYPE_CHECKING:
    import xarray

InnerProducts = Float[Tensor, "n n"]
"""Inner products of a cloud around its mean: all that charts need, however many dimensions E has."""
NULL_FIELDS = ("local_dimension", "local_dimension_two_nearest", "angle", "chart_count")
"""What stands beside a Gaussian cloud."""


@torch.no_grad()
def charts(
    trace: Trace,
    space: SpaceName = "raw",
    nearest: Neighbours = 8,
    dimension: Count | None = None,
    off: Fraction = 0.1,
    draws: Draws = 20,
    seed: Seed = 0,
    keep_massive: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """Is the cloud of tokens a patchwork of flat pieces (a piecewise manifold), layer by layer?

    **Answers** "in how many directions does the cloud spread around a token, do neighbours spread in the same ones, and how few
    flat pieces hold all tokens?"

    **Formula** a token and its `nearest` have as local dimension the fewest principal directions with a share 1 − `off` of their
    variance. Its tangent space are the first p of them, p = `dimension`, or the median local dimension of the cloud. The
    angle of two tangent spaces is that whose sin² is the mean sin² of their principal angles. A ball around a token is flat where its
    points lie off their best p-dimensional plane by at most `off` times the variance of the token's neighbourhood, in the mean square;
    `chart_count` is the number of flat balls, each as large as it can be, that cover the cloud, the one with most new tokens
    first (greedy). Points that are equal are one point.

    **Nerve** each head's neighbourhood of a query are the `nearest` keys of largest score; two heads of a layer overlap by the share
    of them that they have in common, beside what random keys would share. Massive tokens are left out.

    **Null** Gaussian clouds of the same covariance, `draws` of them (0 leaves the null out), with the p of the cloud.

    **Gives** (point): `local_dimension`, `local_dimension_two_nearest`, `angle`, `chart_count`, each with null and its standard
    deviation, `flat_dimension`, `distinct`; (point, token): `dimension`, `dimension_two_nearest`, `bend`, `chart`;
    (layer, head, other): `nerve`, `nerve_null`.

    **Laws** a plane has angle 0 and one chart, two planes have two; unchanged by a turn, a shift and a scale of the cloud, and by
    writing a token twice.

    **Siblings** `clusters` has the dimension of the whole cloud, `distortion` what a head does to neighbours.

    **Source** Facco et al. 2017 (TwoNN), Fukunaga and Olsen 1971 (local principal components).

    >>> import rheoscope as rs
    >>> found = rs.charts(rs.load().trace("The keys to the cabinet are on the table in the hall"), nearest=4, draws=2)
    >>> bool((found.local_dimension <= 4).all() and (found.chart_count >= 1).all())
    True
    """
    if draws < 0 or draws == 1 or not 0 < off < 1 or (dimension is not None and not 1 <= dimension <= nearest):
        raise RheoscopeError(
            f"a null needs 2 draws or more, off lies between 0 and 1, a dimension between 1 and nearest={nearest}; got "
            f"draws={draws}, off={off}, dimension={dimension}; type draws=20, off=0.1"
        )
    clouds = select_clouds(trace, space, "layer", keep_massive, min_tokens=4)
    rows = []
    for x in clouds:
        rows.append(kernel(x, nearest, dimension, off, draws, seed))
        if progress is not None:
            progress(len(rows), len(clouds))
    values = {name: torch.stack([row[name] for row in rows]) for name in rows[0]} | nerve(
        trace, clouds.positions, nearest
    )
    heads = range(trace.view.heads)
    coords = {"point": list(clouds.steps), "token": clouds.positions, "token_text": ("token", clouds.token_texts)}
    coords |= {"layer": range(trace.view.layers), "head": heads, "other": heads}
    settings = {"nearest": nearest, "dimension": dimension or "median", "off": off, "draws": draws, "seed": seed}
    return CHARTS.label(values, coords, settings | clouds.attributes)


def kernel(
    x: Float[Tensor, "n d"], nearest: int, dimension: int | None, off: float, draws: int, seed: int
) -> dict[str, Tensor]:
    """All numbers of one cloud, equal points taken once."""
    inner = centred_inner_products(x.double())
    first_equal = first_equal_index(inner)
    distinct, inverse = first_equal.unique(return_inverse=True)
    if not 1 <= nearest <= len(distinct) - 2:
        raise RheoscopeError(
            f"of {len(distinct)} different points, the nearest are from 1 to {len(distinct) - 2}, got nearest={nearest}; "
            f"type a longer text, or nearest={max(1, min(4, len(distinct) - 2))}"
        )
    inner = centred_inner_products(x.double()[distinct])
    values = chart_statistics(inner, nearest, dimension, off)
    p = int(values["flat_dimension"])
    rows = [chart_statistics(null_inner, nearest, p, off) for null_inner in gaussian_inner_products(inner, draws, seed)]
    null_samples = {name: torch.stack([row[name] for row in rows]).double() for name in NULL_FIELDS if rows}
    null_sds = {f"{name}_null_sd": samples.std(0) for name, samples in null_samples.items()}
    values |= {name: values[name][inverse] for name in ("dimension", "dimension_two_nearest", "bend", "chart")}
    null_means = {f"{name}_null": samples.mean(0) for name, samples in null_samples.items()}
    return values | null_means | null_sds | {"distinct": torch.tensor(len(distinct), device=x.device)}


def first_equal_index(inner: InnerProducts) -> Int[Tensor, " n"]:
    """For every point the first that is equal to it.

    >>> first_equal_index(centred_inner_products(torch.tensor([[0.0], [2.0], [0.0], [5.0]]))).tolist()
    [0, 1, 0, 3]
    """
    return (distances(inner) == 0).to(torch.int8).argmax(-1)


def gaussian_inner_products(inner: InnerProducts, draws: int, seed: int) -> Iterator[InnerProducts]:
    """Inner products of Gaussian clouds, given that their covariance and number of points are those of this one.

    Given its mean and covariance, a Gaussian cloud X is evenly distributed over QX, Q the rotations of token space that keep the mean.
    """
    generator, n = torch.Generator().manual_seed(seed), len(inner)
    mean_free_basis = (
        torch.linalg.qr(torch.cat([torch.ones(n, 1), torch.eye(n)[:, 1:]], -1).double()).Q[:, 1:].to(inner.device)
    )
    for _ in range(draws):
        Q = (
            mean_free_basis
            @ random_rotations(1, n - 1, generator, torch.float64)[0].to(inner.device)
            @ mean_free_basis.mT
        )
        yield Q @ inner @ Q.mT


def chart_statistics(inner: InnerProducts, nearest: int, dimension: int | None, off: float) -> dict[str, Tensor]:
    """All numbers of one cloud whose points differ."""
    distance = distances(inner)
    neighbours = nearest_neighbours(distance, nearest)
    pca = local_pca(inner, neighbours)
    dims = pca.dimensions(off)
    p = int(dims.sort().values[len(dims) // 2]) if dimension is None else dimension
    bend = mean_tangent_angles(inner, pca, neighbours, p)
    chart = greedy_cover(
        largest_flat_balls(inner, distance.argsort(dim=-1, stable=True), p, off * pca.mean_square_distance)
    )
    two_nn = local_two_nn_dimension(distance, pca.members)
    return {
        "flat_dimension": torch.tensor(p, device=inner.device),
        "dimension": dims,
        "dimension_two_nearest": two_nn,
        "bend": bend,
        "chart": chart,
        "local_dimension": dims.double().mean(),
        "local_dimension_two_nearest": two_nn.median(),
        "angle": bend.mean(),
        "chart_count": chart.max() + 1,
    }


@dataclass(frozen=True, eq=False)
class LocalPCA:
    """The neighbourhood of every point: who is in it (itself first), its principal variances and their directions.

    `directions` are coefficients on the points of the neighbourhood, around its mean; variances fall.
    """

    members: Int[Tensor, "n k"]
    variances: Float[Tensor, "n k"]
    directions: Float[Tensor, "n k k"]

    @property
    def mean_square_distance(self) -> Float[Tensor, " n"]:
        """Mean squared distance from the mean of the neighbourhood."""
        return self.variances.sum(-1) / self.members.shape[-1]

    def dimensions(self, off: float) -> Int[Tensor, " n"]:
        """The fewest principal directions with all but a share `off` of the variance."""
        unexplained = 1 - self.variances.cumsum(-1) / self.variances.sum(-1, keepdim=True)
        return 1 + (unexplained > off + 1e-9).sum(-1)

    def tangents(self, p: int) -> Float[Tensor, "n k p"]:
        """The first p directions of unit length, as coefficients; 0 where there are not so many."""
        leading = self.variances[:, :p]
        is_nonzero = leading > 1e-9 * self.variances[:, :1]
        scale = torch.where(is_nonzero, leading, 1).rsqrt() * is_nonzero
        return self.directions[..., :p] * scale[:, None]


def local_pca(inner: InnerProducts, neighbours: Int[Tensor, "n k"]) -> LocalPCA:
    """Local principal components, from inner products alone."""
    members = torch.cat([torch.arange(len(inner), device=inner.device)[:, None], neighbours], -1)
    variances, directions = torch.linalg.eigh(double_centred(inner[members[:, :, None], members[:, None]]))
    return LocalPCA(members, variances.flip(-1).clamp(min=0), directions.flip(-1))


def double_centred(table: Float[Tensor, "*t m n"]) -> Float[Tensor, "*t m n"]:
    """Less the means of rows and columns: inner products around both means."""
    table = table - table.mean(-1, keepdim=True)
    return table - table.mean(-2, keepdim=True)


def mean_tangent_angles(
    inner: InnerProducts, pca: LocalPCA, neighbours: Int[Tensor, "n k"], p: int
) -> Float[Tensor, " n"]:
    """Mean angle between the tangent space of a point and those of its neighbours."""
    tangent = pca.tangents(p)
    table = double_centred(inner[pca.members[:, None, :, None], pca.members[neighbours][:, :, None]])
    overlap = tangent.mT[:, None] @ table @ tangent[neighbours]
    tangent_dims = (tangent != 0).any(1).sum(-1)
    shared_dims = torch.minimum(tangent_dims[:, None], tangent_dims[neighbours])
    return (1 - overlap.square().sum((-2, -1)) / shared_dims).clamp(0, 1).sqrt().arcsin().mean(-1)


def local_two_nn_dimension(distance: Float[Tensor, "n n"], members: Int[Tensor, "n k"]) -> Float[Tensor, " n"]:
    """TwoNN over the points of each neighbourhood: (k − 1)/Σ log(r₂/r₁)."""
    first, second = distance.topk(3, largest=False).values[:, 1:].unbind(-1)  # itself before them
    return (members.shape[-1] - 1) / (second / first).log()[members].sum(-1).clamp(min=1e-12)


# The cover


def largest_flat_balls(
    inner: InnerProducts, order: Int[Tensor, "n n"], p: int, max_residual: Float[Tensor, " n"]
) -> Bool[Tensor, "n n"]:
    """For every point the largest ball around it that is flat: doubled while it is, then halved in on its edge."""
    n = len(inner)
    flat_size = torch.full((n,), min(p + 1, n), device=inner.device)  # so few points always lie in a plane
    too_large_size = torch.full_like(flat_size, n + 1)
    while True:
        size = torch.where(too_large_size > n, (2 * flat_size).clamp(max=n), (flat_size + too_large_size) // 2)
        undecided = ((too_large_size - flat_size) > 1).nonzero()[:, 0]
        if not len(undecided):
            break
        is_flat = (
            plane_residuals(inner, order[undecided], size[undecided], p)
            <= max_residual[undecided] * (1 + 1e-9) + 1e-12 * inner.trace() / n
        )
        flat_size[undecided[is_flat]] = size[undecided[is_flat]]
        too_large_size[undecided[~is_flat]] = size[undecided[~is_flat]]
    rank = torch.empty_like(order).scatter_(-1, order, torch.arange(n, device=order.device).expand(n, n).contiguous())
    return rank < flat_size[:, None]


def plane_residuals(
    inner: InnerProducts, order: Int[Tensor, "b n"], size: Int[Tensor, " b"], p: int
) -> Float[Tensor, " b"]:
    """Mean squared distance of the first `size` points of each row from the best p-dimensional plane through them."""
    members = order[:, : int(size.max())]
    is_member = torch.arange(members.shape[-1], device=members.device) < size[:, None]
    weights = is_member.double() / size[:, None]
    table = inner[members[:, :, None], members[:, None]]
    row_means = torch.einsum("bij,bj->bi", table, weights)
    table = (
        table - row_means[:, :, None] - row_means[:, None] + torch.einsum("bi,bi->b", row_means, weights)[:, None, None]
    )
    table = table * (is_member[:, :, None] & is_member[:, None])
    variances = torch.linalg.eigvalsh(table)
    return variances[:, : max(0, members.shape[-1] - p)].clamp(min=0).sum(-1) / size


def greedy_cover(is_member: Bool[Tensor, "n n"]) -> Int[Tensor, " n"]:
    """Which chart covers each point, the one with most new points first.

    >>> greedy_cover(torch.tensor([[True, True, False], [False, True, True], [False, False, True]])).tolist()
    [0, 0, 1]
    """
    chart = torch.full((len(is_member),), -1, device=is_member.device)
    while bool((chart < 0).any()):
        best = int((is_member & (chart < 0)).sum(-1).argmax())
        chart[is_member[best] & (chart < 0)] = int(chart.max()) + 1
    return chart


def _with_gaussian_null(name: str, definition: str, unit: str = "") -> dict[str, Field]:
    """A number of a cloud and what Gaussian clouds give."""
    null, sd = f"{name}_null", f"{name}_null_sd"
    return {
        name: Field(("point",), definition, unit, null=null, null_sd=sd),
        null: Field(("point",), f"mean {name} of Gaussian clouds of the same covariance", unit),
        sd: Field(("point",), "standard deviation of that over the draws", unit),
    }


TOKEN_DIMS = ("point", "token")
CHARTS = Analysis(
    name="charts",
    question="Is the cloud of tokens a patchwork of flat pieces: how many, and do neighbours lie in the same one?",
    ask=charts,
    needs="trace",
    expensive=True,
    fields={
        **_with_gaussian_null("local_dimension", "mean over different points of their local dimension"),
        **_with_gaussian_null(
            "local_dimension_two_nearest", "median over different points of the TwoNN dimension of their neighbourhood"
        ),
        **_with_gaussian_null(
            "angle", "mean angle between the tangent spaces of a point and of its nearest: 0 in a flat piece", "radians"
        ),
        **_with_gaussian_null("chart_count", "flat balls, found greedily, that together hold every point"),
        "flat_dimension": Field(("point",), "p, the dimension of tangent spaces and flat pieces at this point"),
        "distinct": Field(("point",), "different points of the cloud"),
        "dimension": Field(
            TOKEN_DIMS,
            "fewest principal directions with all but the share `off` of the variance of a token and its nearest",
        ),
        "dimension_two_nearest": Field(
            TOKEN_DIMS, "TwoNN over a token and its nearest: (k − 1)/Σ log(r₂/r₁), equal points once"
        ),
        "bend": Field(
            TOKEN_DIMS, "mean angle between the tangent space of a token and those of its nearest", "radians"
        ),
        "chart": Field(TOKEN_DIMS, "the flat piece that a token is in, 0 the largest"),
        "nerve": Field(
            ("layer", "head", "other"),
            "share of the nearest keys (by score) of a query that two heads have in common, mean over queries",
            null="nerve_null",
        ),
        "nerve_null": Field(
            ("layer", "head", "other"), "the same where keys are picked at random among the permitted ones"
        ),
    },
)
