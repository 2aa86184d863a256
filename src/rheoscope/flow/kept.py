"""Do the additive updates keep the geometry that the tokens had? Distances and neighbours against earlier clouds."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.flow.cloud import clouds
from rheoscope.shapes import RheoscopeError
from rheoscope.space.components import mlp_at
from rheoscope.space.dataset import dataset
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

DEFINITIONS = {
    "rsa": "Spearman correlation of all pairwise distances at this point with those at the reference: 1 the same geometry",
    "rsa_null": "mean of the same over all permutations of the reference's tokens: 0",
    "rsa_null_sd": "standard deviation of the same over all permutations, exact (Mantel 1967)",
    "neighbours": "share of a token's k nearest tokens at the reference that are still among its k nearest",
    "neighbours_null": "the same at random: k / (n − 1)",
    "erasure": "Σ ⟨Δ_h, x_last − x_after⟩ / Σ ‖Δ_h‖² over tokens, in the stream as it is: −1 where all that is written later takes "
    "back what the head wrote, 0 where it leaves it alone, positive where it writes more of the same",
    "erasure_mlp": "the same for what the MLP of a layer wrote",
}


@torch.no_grad()
def kept(
    trace: Trace,
    space: str = "raw",
    strides: Sequence[int] = (1, 4),
    k: int = 5,
    keep_massive: bool = False,
) -> "xarray.Dataset":
    """How much of the tokens' geometry survives, layer by layer.

    **Answers** "are tokens that were near each other still near, after this layer?"

    **Formula** RSA: Spearman correlation of the n(n−1)/2 pairwise distances of two clouds. Neighbours: mean over tokens
    of |kNN ∩ kNN'| / k. The reference is the embedding (`"embed"`) or the cloud `stride` layers before (`"-1"`, `"-4"`).

    Erasure: ⟨Δ_h, x_last − x_after⟩ / ‖Δ_h‖², Δ_h what a head takes from the tokens, x_after the point that its attention
    made, summed over tokens above and below.

    **Gives** (point, reference): `rsa`, `neighbours` and the null of each; NaN where a reference lies before the start;
    (layer, head): `erasure`; (layer): `erasure_mlp`.

    **Laws** 1 against itself; unchanged by a turn, a shift and a scale of either cloud; the null of RSA has mean 0.

    **Source** Kriegeskorte et al. 2008 (RSA), Mantel 1967 (its null).

    >>> import rheoscope as rs
    >>> found = rs.kept(rs.load().trace("The keys to the cabinet are on the table in the hall"))
    >>> round(float(found.rsa.sel(point="embed", reference="embed")), 6)
    1.0
    """
    seen = clouds(trace, space, "layer", keep_massive, least=4)
    points, n = seen.points, seen.points.shape[1]
    if not 1 <= k < n - 1:
        raise RheoscopeError(f"k nearest of {n} tokens: 1 ≤ k < {n - 1}, got {k}; type k={max(1, min(5, n - 2))}")
    far = [distances(x) for x in points]
    ranks = torch.stack([ranked(d) for d in far])
    near, rows = torch.stack([nearest(d, k) for d in far]), torch.stack([pulls(r, n) for r in ranks])
    names = ["embed", *(f"-{stride}" for stride in strides)]
    table = torch.full((3, len(points), len(names)), float("nan"), dtype=ranks.dtype)
    for at in range(len(points)):
        for column, back in enumerate([at, *strides]):
            if back <= at:
                was = at - back
                spread = mantel(rows[at], rows[was], n)
                table[:, at, column] = torch.stack([ranks[at] @ ranks[was], spread, overlap(near[at], near[was])])
    rsa, spread, neighbours = table
    values: dict[str, tuple[tuple[str, ...], Tensor]] = {
        "rsa": (("point", "reference"), rsa),
        "rsa_null": (("point", "reference"), 0 * rsa),
        "rsa_null_sd": (("point", "reference"), spread),
        "neighbours": (("point", "reference"), neighbours),
        "neighbours_null": ((), torch.tensor(k / (n - 1))),
    } | erasures(trace, seen.kept)
    numbers = {"layer": range(trace.view.layers), "head": range(trace.view.heads)}
    coords = {"point": list(seen.steps), "reference": names} | numbers
    return dataset(values, DEFINITIONS, coords, {"analysis": "kept", "k": k} | seen.attributes)


def erasures(trace: Trace, kept: list[int]) -> dict[str, tuple[tuple[str, ...], Tensor]]:
    """How much of what each head and each MLP wrote is taken back by all that is written after it."""
    exact = torch.promote_types(trace.points.dtype, torch.float32)
    points, layers = trace.points[:, kept].to(exact), range(trace.view.layers)
    later = points[-1] - points
    heads = [erased(trace.parts(layer, kept)[0].to(exact), later[trace.middle[layer]]) for layer in layers]
    ends = [mlp_at(trace, layer) for layer in layers]
    mlps = [erased((points[end] - points[end - 1])[None], later[end])[0] for end in ends]
    return {
        "erasure": (("layer", "head"), torch.stack(heads)),
        "erasure_mlp": (("layer",), torch.stack(mlps)),
    }


def erased(moved: Float[Tensor, "h n d"], later: Float[Tensor, "n d"]) -> Float[Tensor, " h"]:
    """Σ ⟨Δ, what is written later⟩ / Σ ‖Δ‖²; 0 where nothing was written."""
    size = moved.square().sum((-2, -1))
    return torch.where(size > 0, (moved * later).sum((-2, -1)) / torch.where(size > 0, size, 1), 0)


def distances(x: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """All pairwise distances, by inner products in float64; what is 0 but for rounding is 0, so that equal points are."""
    x = x.double() - x.double().mean(0)
    lengths = x.square().sum(-1)
    squared = lengths[:, None] + lengths - 2 * x @ x.mT
    return torch.where(squared > 1e-13 * (lengths[:, None] + lengths), squared, 0).fill_diagonal_(0).sqrt()


def ranked(d: Float[Tensor, "n n"]) -> Float[Tensor, " pairs"]:
    """Distances of all pairs i < j as ranks, ties sharing their mean rank, centred and of length 1."""
    i, j = torch.triu_indices(len(d), len(d), 1)
    _, inverse, counts = d[i, j].unique(return_inverse=True, return_counts=True)
    middle = counts.cumsum(0) - (counts + 1) / 2
    rank = middle[inverse].double()
    rank = rank - rank.mean()
    return rank / rank.norm().clamp(min=1e-30)


def pulls(rank: Float[Tensor, " pairs"], n: int) -> Float[Tensor, "2"]:
    """Σ_{i≠j} a_ij² and Σ a_ij a_il over distinct i, j, l of the table of these ranks: all that Mantel's null needs."""
    i, j = torch.triu_indices(n, n, 1)
    rows = torch.zeros(n, dtype=rank.dtype).index_add_(0, i, rank).index_add_(0, j, rank)
    squares = 2 * rank.square().sum()
    return torch.stack([squares, rows.square().sum() - squares])


def mantel(a: Float[Tensor, "2"], b: Float[Tensor, "2"], n: int) -> Float[Tensor, ""]:
    """Standard deviation of Σ_{i<j} a_ij b_π(i)π(j) over all permutations π, both tables symmetric and of sum 0.

    Squared, the sum has pairs of pairs that share two tokens, one, or none; each kind has its mean over permutations.
    """
    shared = [torch.stack([2 * x[0], 4 * x[1], -2 * x[0] - 4 * x[1]]) for x in (a, b)]
    ways = torch.tensor([2 * n * (n - 1), 4 * n * (n - 1) * (n - 2), n * (n - 1) * (n - 2) * (n - 3)]).to(a)
    return ((shared[0] * shared[1] / ways).sum().clamp(min=0) / 4).sqrt()


def nearest(d: Float[Tensor, "n n"], k: int) -> Int[Tensor, "n k"]:
    """The k nearest other tokens of each; of equally near ones the earlier."""
    return (d + torch.diag(torch.full((len(d),), float("inf"), dtype=d.dtype))).sort(dim=-1, stable=True).indices[:, :k]


def overlap(a: Int[Tensor, "n k"], b: Int[Tensor, "n k"]) -> Float[Tensor, ""]:
    """Mean share of neighbours in common."""
    return (a[:, :, None] == b[:, None, :]).any(-1).double().mean()
