"""Charts: local dimension, angles between tangent spaces, and covers of the cloud by flat pieces."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.flow.charts.nerve import nerve
from rheoscope.flow.cloud import select_clouds
from rheoscope.flow.geometry_kept.analysis import nearest_neighbours
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.pair_distances import centred_inner_products, distances
from rheoscope.space.settings import Count, Draws, Fraction, Neighbours, Seed, SpaceName
from rheoscope.space.trace import Trace
from rheoscope.statistics.nulls import random_rotations

if TYPE_CHECKING:
    import xarray

InnerProducts = Float[Tensor, "n n"]
"""The inner products of a centred cloud. Charts need nothing else, whatever the width of E."""
NULL_FIELDS = ("local_dimension", "local_dimension_two_nearest", "angle", "chart_count")
"""The fields that are compared with Gaussian clouds."""


@torch.no_grad()
def charts(
    trace: Trace,
    space: SpaceName = "raw",
    n_neighbours: Neighbours = 8,
    dimension: Count | None = None,
    unexplained_variance: Fraction = 0.1,
    draws: Draws = 20,
    seed: Seed = 0,
    keep_massive: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """Is the cloud of tokens a union of flat pieces (a piecewise manifold), layer by layer?

    **Question** Over how many directions does the cloud spread around a token, do neighbours share these directions, and how few
    flat pieces cover all tokens?

    **Formula** The local dimension of a token is the smallest number of principal components that explain all but
    `unexplained_variance` of the variance of the token and its neighbours. The tangent space has the first p components, where p is
    `dimension` or the median local dimension. The angle of two tangent spaces has the mean sin² of their principal angles as its
    sin². A ball around a token is flat if the mean squared distance of its points from their best p-dimensional plane is at most
    `unexplained_variance` times the variance of the neighbourhood. `chart_count` is the number of largest flat balls in a greedy
    cover of the cloud. Equal points count once.

    The nerve compares heads. The neighbourhood of a query in a head consists of the keys with the largest scores. Two heads of a
    layer overlap by the share of keys that they have in common.

    The null consists of `draws` Gaussian clouds with the same covariance, analysed with the same p.

    **Returns** (point): `local_dimension`, `local_dimension_two_nearest`, `angle` and `chart_count` with their nulls,
    `flat_dimension`, `distinct_points`. (point, token): `dimension`, `dimension_two_nearest`, `tangent_angle`, `chart`. (layer,
    head, other): `nerve`, `nerve_null`. Massive tokens are left out.

    **Settings** `n_neighbours` is the number of nearest tokens, and of nearest keys for the nerve.

    **Laws** A plane has angle 0 and one chart. Two planes have two charts. Rotating, shifting or scaling the cloud, or repeating a
    token, changes nothing.

    **Source** Facco et al. 2017 (TwoNN), Fukunaga and Olsen 1971 (local principal components).

    **See also** `clusters` has the dimension of the whole cloud. `distortion` reports what a head does to neighbours.

    >>> import rheoscope as rs
    >>> result = rs.charts(rs.load().trace("The keys to the cabinet are on the table in the hall"), n_neighbours=4, draws=2)
    >>> bool((result.local_dimension <= 4).all() and (result.chart_count >= 1).all())
    True
    """
    _check_settings(n_neighbours, dimension, unexplained_variance, draws)
    clouds = select_clouds(trace, space, "layer", keep_massive, min_tokens=4)
    rows = []
    for x in clouds:
        rows.append(kernel(x, n_neighbours, dimension, unexplained_variance, draws, seed))
        if progress is not None:
            progress(len(rows), len(clouds))
    values = {name: torch.stack([row[name] for row in rows]) for name in rows[0]} | nerve(
        trace, clouds.positions, n_neighbours
    )
    heads = range(trace.view.heads)
    coords = {"point": list(clouds.steps), "token": clouds.positions, "token_text": ("token", clouds.token_texts)}
    coords |= {"layer": range(trace.view.layers), "head": heads, "other": heads}
    settings: dict[str, Any] = {
        "n_neighbours": n_neighbours,
        "dimension": dimension or "median",
        "draws": draws,
        "seed": seed,
    }
    settings |= {"unexplained_variance": unexplained_variance}
    return CHARTS.label(values, coords, settings | clouds.attributes)


def _check_settings(n_neighbours: int, dimension: int | None, unexplained_variance: float, draws: int) -> None:
    if draws < 0 or draws == 1:
        raise RheoscopeError(
            Message("draws must be 0 (no null) or at least {low}, got {received}", low=2, received=draws), use(draws=20)
        )
    if not 0 < unexplained_variance < 1:
        raise RheoscopeError(
            Message(
                "unexplained_variance must lie between 0 and 1, both excluded, got {received}",
                received=unexplained_variance,
            ),
            use(unexplained_variance=0.1),
        )
    if dimension is not None and not 1 <= dimension <= n_neighbours:
        raise RheoscopeError(
            Message(
                "dimension must lie between 1 and n_neighbours, {high}, got {received}",
                high=n_neighbours,
                received=dimension,
            ),
            use(dimension=n_neighbours),
        )


def kernel(
    x: Float[Tensor, "n d"],
    n_neighbours: int,
    dimension: int | None,
    unexplained_variance: float,
    draws: int,
    seed: int,
) -> dict[str, Tensor]:
    """The statistics of one cloud, in which equal points count once."""
    inner = centred_inner_products(x.double())
    first_equal = first_equal_index(inner)
    distinct, inverse = first_equal.unique(return_inverse=True)
    if not 1 <= n_neighbours <= len(distinct) - 2:
        raise RheoscopeError(
            Message(
                "with {n} distinct points, n_neighbours must lie between 1 and {high}, got {received}; a longer text allows more",
                n=len(distinct),
                high=len(distinct) - 2,
                received=n_neighbours,
            ),
            use(n_neighbours=max(1, min(4, len(distinct) - 2))),
        )
    inner = centred_inner_products(x.double()[distinct])
    values = chart_statistics(inner, n_neighbours, dimension, unexplained_variance)
    p = int(values["flat_dimension"])
    rows = [
        chart_statistics(null_inner, n_neighbours, p, unexplained_variance)
        for null_inner in gaussian_inner_products(inner, draws, seed)
    ]
    null_samples = {name: torch.stack([row[name] for row in rows]).double() for name in NULL_FIELDS if rows}
    null_sds = {f"{name}_null_sd": samples.std(0) for name, samples in null_samples.items()}
    values |= {name: values[name][inverse] for name in ("dimension", "dimension_two_nearest", "tangent_angle", "chart")}
    null_means = {f"{name}_null": samples.mean(0) for name, samples in null_samples.items()}
    return values | null_means | null_sds | {"distinct_points": torch.tensor(len(distinct), device=x.device)}


def first_equal_index(inner: InnerProducts) -> Int[Tensor, " n"]:
    """For every point, the index of the first point that equals it.

    >>> first_equal_index(centred_inner_products(torch.tensor([[0.0], [2.0], [0.0], [5.0]]))).tolist()
    [0, 1, 0, 3]
    """
    return (distances(inner) == 0).to(torch.int8).argmax(-1)


def gaussian_inner_products(inner: InnerProducts, draws: int, seed: int) -> Iterator[InnerProducts]:
    """Inner products of random Gaussian clouds with the covariance and the number of points of this cloud.

    Given its mean and covariance, a Gaussian cloud X is uniformly distributed over QX, where Q are the rotations of token space that
    preserve the mean.
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


def chart_statistics(
    inner: InnerProducts, n_neighbours: int, dimension: int | None, unexplained_variance: float
) -> dict[str, Tensor]:
    """The statistics of one cloud of distinct points."""
    distance = distances(inner)
    neighbours = nearest_neighbours(distance, n_neighbours)
    pca = local_pca(inner, neighbours)
    dims = pca.dimensions(unexplained_variance)
    p = int(dims.sort().values[len(dims) // 2]) if dimension is None else dimension
    tangent_angle = mean_tangent_angles(inner, pca, neighbours, p)
    chart = greedy_cover(
        largest_flat_balls(
            inner, distance.argsort(dim=-1, stable=True), p, unexplained_variance * pca.mean_square_distance
        )
    )
    two_nn = local_two_nn_dimension(distance, pca.members)
    return {
        "flat_dimension": torch.tensor(p, device=inner.device),
        "dimension": dims,
        "dimension_two_nearest": two_nn,
        "tangent_angle": tangent_angle,
        "chart": chart,
        "local_dimension": dims.double().mean(),
        "local_dimension_two_nearest": two_nn.median(),
        "angle": tangent_angle.mean(),
        "chart_count": chart.max() + 1,
    }


@dataclass(frozen=True, eq=False)
class LocalPCA:
    """The neighbourhood of every point (the point itself first), with its principal variances and directions.

    `directions` are coefficients on the centred points of the neighbourhood. Variances are in decreasing order.
    """

    members: Int[Tensor, "n k"]
    variances: Float[Tensor, "n k"]
    directions: Float[Tensor, "n k k"]

    @property
    def mean_square_distance(self) -> Float[Tensor, " n"]:
        """The mean squared distance from the mean of the neighbourhood."""
        return self.variances.sum(-1) / self.members.shape[-1]

    def dimensions(self, unexplained_variance: float) -> Int[Tensor, " n"]:
        """The smallest number of principal directions that leave at most `unexplained_variance` unexplained."""
        unexplained = 1 - self.variances.cumsum(-1) / self.variances.sum(-1, keepdim=True)
        return 1 + (unexplained > unexplained_variance + 1e-9).sum(-1)

    def tangents(self, p: int) -> Float[Tensor, "n k p"]:
        """The first p directions, normalised, as coefficients; 0 if the neighbourhood has fewer directions."""
        leading = self.variances[:, :p]
        is_nonzero = leading > 1e-9 * self.variances[:, :1]
        scale = torch.where(is_nonzero, leading, 1).rsqrt() * is_nonzero
        return self.directions[..., :p] * scale[:, None]


def local_pca(inner: InnerProducts, neighbours: Int[Tensor, "n k"]) -> LocalPCA:
    """Local principal components from inner products."""
    members = torch.cat([torch.arange(len(inner), device=inner.device)[:, None], neighbours], -1)
    variances, directions = torch.linalg.eigh(double_centred(inner[members[:, :, None], members[:, None]]))
    return LocalPCA(members, variances.flip(-1).clamp(min=0), directions.flip(-1))


def double_centred(table: Float[Tensor, "*t m n"]) -> Float[Tensor, "*t m n"]:
    """Subtract the means of rows and columns, which centres both sides of the inner products."""
    table = table - table.mean(-1, keepdim=True)
    return table - table.mean(-2, keepdim=True)


def mean_tangent_angles(
    inner: InnerProducts, pca: LocalPCA, neighbours: Int[Tensor, "n k"], p: int
) -> Float[Tensor, " n"]:
    """The mean angle between the tangent space of a point and those of its neighbours."""
    tangent = pca.tangents(p)
    table = double_centred(inner[pca.members[:, None, :, None], pca.members[neighbours][:, :, None]])
    overlap = tangent.mT[:, None] @ table @ tangent[neighbours]
    tangent_dims = (tangent != 0).any(1).sum(-1)
    shared_dims = torch.minimum(tangent_dims[:, None], tangent_dims[neighbours])
    return (1 - overlap.square().sum((-2, -1)) / shared_dims).clamp(0, 1).sqrt().arcsin().mean(-1)


def local_two_nn_dimension(distance: Float[Tensor, "n n"], members: Int[Tensor, "n k"]) -> Float[Tensor, " n"]:
    """The TwoNN estimate of each neighbourhood, (k − 1)/Σ log(r₂/r₁)."""
    first, second = distance.topk(3, largest=False).values[:, 1:].unbind(-1)  # the point itself comes first
    return (members.shape[-1] - 1) / (second / first).log()[members].sum(-1).clamp(min=1e-12)


# The cover


def largest_flat_balls(
    inner: InnerProducts, order: Int[Tensor, "n n"], p: int, max_residual: Float[Tensor, " n"]
) -> Bool[Tensor, "n n"]:
    """For every point the largest flat ball around it, by doubling its size and then by bisection."""
    n = len(inner)
    flat_size = torch.full((n,), min(p + 1, n), device=inner.device)  # p + 1 points always lie in a p-dimensional plane
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
    """The mean squared distance of the first `size` points of each row from their best p-dimensional plane."""
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
    """The chart of each point in a greedy cover, which takes the ball with the most uncovered points first.

    >>> greedy_cover(torch.tensor([[True, True, False], [False, True, True], [False, False, True]])).tolist()
    [0, 0, 1]
    """
    chart = torch.full((len(is_member),), -1, device=is_member.device)
    while bool((chart < 0).any()):
        best = int((is_member & (chart < 0)).sum(-1).argmax())
        chart[is_member[best] & (chart < 0)] = int(chart.max()) + 1
    return chart


def _with_gaussian_null(name: str, definition: str, unit: str = "") -> dict[str, Field]:
    """A field, and the mean and standard deviation of its Gaussian null."""
    null, sd = f"{name}_null", f"{name}_null_sd"
    return {
        name: Field(("point",), definition, unit, null=null, null_sd=sd),
        null: Field(("point",), Message("mean {field} of Gaussian clouds with the same covariance", field=name), unit),
        sd: Field(("point",), Message("standard deviation of {field} over the Gaussian clouds", field=name), unit),
    }


TOKEN_DIMS = ("point", "token")
CHARTS = Analysis(
    name="charts",
    question="Is the cloud of tokens a union of flat pieces, how many are there, and do neighbours share their tangent space?",
    ask=charts,
    needs="trace",
    expensive=True,
    fields={
        **_with_gaussian_null("local_dimension", Message("local dimension, mean over distinct points")),
        **_with_gaussian_null(
            "local_dimension_two_nearest", Message("TwoNN dimension of the neighbourhood, median over distinct points")
        ),
        **_with_gaussian_null(
            "angle",
            Message("angle between the tangent spaces of a point and its neighbours, mean over points"),
            "radians",
        ),
        **_with_gaussian_null("chart_count", Message("number of flat balls in a greedy cover of the cloud")),
        "flat_dimension": Field(("point",), "dimension p of the tangent spaces and of the flat pieces"),
        "distinct_points": Field(("point",), "number of distinct points of the cloud"),
        "dimension": Field(
            TOKEN_DIMS,
            "smallest number of principal directions that leave at most unexplained_variance of the neighbourhood unexplained",
        ),
        "dimension_two_nearest": Field(
            TOKEN_DIMS, "TwoNN dimension of the neighbourhood, (k − 1)/Σ log(r₂/r₁) over distinct points"
        ),
        "tangent_angle": Field(
            TOKEN_DIMS, "mean angle between the tangent spaces of the token and of its neighbours", "radians"
        ),
        "chart": Field(TOKEN_DIMS, "flat piece that contains the token, 0 for the largest"),
        "nerve": Field(
            ("layer", "head", "other"),
            "share of the keys with the largest scores that two heads have in common, mean over queries",
            null="nerve_null",
        ),
        "nerve_null": Field(("layer", "head", "other"), "expected share for random permitted keys"),
    },
)
