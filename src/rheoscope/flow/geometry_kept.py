"""Do the additive updates keep the geometry that the tokens had? Distances and neighbours against earlier clouds."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.flow.cloud import clouds
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.components import mlp_at
from rheoscope.space.pairs import distances, inner_products, upper
from rheoscope.space.ranks import unit_ranks
from rheoscope.space.share import exact, share
from rheoscope.space.ticking import tick
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray


@torch.no_grad()
def geometry_kept(
    trace: Trace,
    space: str = "raw",
    strides: Sequence[int] = (1, 4),
    nearest: int = 5,
    keep_massive: bool = False,
) -> "xarray.Dataset":
    """How much of the tokens' geometry survives, layer by layer.

    **Answers** "are tokens that were near each other still near, after this layer?"

    **Formula** RSA: Spearman correlation of the n(n−1)/2 pairwise distances of two clouds. Neighbours: mean over tokens
    of the share of its `nearest` tokens that are still among them. The reference is the embedding
    (`"embed"`) or the cloud `stride` layers before (`"-1"`, `"-4"`).

    Erasure: ⟨Δ_h, x_last − x_after⟩ / ‖Δ_h‖², Δ_h what a head takes from the tokens, x_after the point that its attention
    made, summed over tokens above and below.

    **Gives** (point, reference): `rsa`, `neighbours` and the null of each; NaN where a reference lies before the start;
    (layer, head): `erasure`; (layer): `erasure_mlp`.

    **Laws** 1 against itself; unchanged by a turn, a shift and a scale of either cloud; the null of RSA has mean 0.

    **Source** Kriegeskorte et al. 2008 (RSA), Mantel 1967 (its null).

    >>> import rheoscope as rs
    >>> found = rs.geometry_kept(rs.load().trace("The keys to the cabinet are on the table in the hall"))
    >>> round(float(found.rsa.sel(point="embed", reference="embed")), 6)
    1.0
    """
    seen = clouds(trace, space, "layer", keep_massive, least=4)
    n = len(seen.tokens)
    if not 1 <= nearest < n - 1:
        raise RheoscopeError(
            f"of {n} tokens, the nearest are from 1 to {n - 2}, got nearest={nearest}; type nearest={max(1, min(5, n - 2))}"
        )
    names = ["embed", *(f"-{stride}" for stride in strides)]
    values = kernel(seen.points, strides, nearest) | erasures(trace, seen.tokens)
    numbers = {"layer": range(trace.view.layers), "head": range(trace.view.heads)}
    coords = {"point": list(seen.steps), "reference": names} | numbers
    return GEOMETRY_KEPT.answer(values, coords, {"nearest": nearest} | seen.attributes)


def kernel(points: Float[Tensor, "p n d"], strides: Sequence[int], nearest: int) -> dict[str, Tensor]:
    """Every cloud against the first and against those `strides` before it."""
    n = points.shape[-2]
    far = [distances(inner_products(x.double())) for x in points]
    ranks, near = (
        torch.stack([unit_ranks(upper(d)) for d in far]),
        torch.stack([neighbours_of(d, nearest) for d in far]),
    )
    rows = torch.stack([pulls(r, n) for r in ranks])
    table = torch.full((3, len(points), 1 + len(strides)), float("nan"), dtype=ranks.dtype, device=ranks.device)
    for at in range(len(points)):
        for column, back in enumerate([at, *strides]):
            if back <= at:
                was = at - back
                spread = mantel(rows[at], rows[was], n)
                table[:, at, column] = torch.stack([ranks[at] @ ranks[was], spread, overlap(near[at], near[was])])
    rsa, spread, neighbours = table
    chance = torch.tensor(nearest / (n - 1))
    return {"rsa": rsa, "rsa_null": 0 * rsa, "rsa_null_sd": spread, "neighbours": neighbours, "neighbours_null": chance}


def erasures(trace: Trace, kept: list[int]) -> dict[str, Tensor]:
    """How much of what each head and each MLP wrote is taken back by all that is written after it."""

    def at(step: int) -> Float[Tensor, "n d"]:
        return trace.points[step, kept].to(last.dtype)

    last, heads, mlps = exact(trace.points[-1, kept]), [], []
    for layer in range(trace.view.layers):
        tick(layer, trace.view.layers)
        made, end = trace.carried(layer).at(kept).exact(), mlp_at(trace, layer)
        heads.append(share(made.along(last - at(trace.middle[layer])).sum(-1), made.squares().sum(-1)))
        wrote = at(end) - at(end - 1)
        mlps.append(share((wrote * (last - at(end))).sum(), wrote.square().sum()))
    return {"erasure": torch.stack(heads), "erasure_mlp": torch.stack(mlps)}


def pulls(rank: Float[Tensor, " pairs"], n: int) -> Float[Tensor, "2"]:
    """Σ_{i≠j} a_ij² and Σ a_ij a_il over distinct i, j, l of the table of these ranks: all that Mantel's null needs."""
    i, j = torch.triu_indices(n, n, 1, device=rank.device)
    rows = rank.new_zeros(n).index_add_(0, i, rank).index_add_(0, j, rank)
    squares = 2 * rank.square().sum()
    return torch.stack([squares, rows.square().sum() - squares])


def mantel(a: Float[Tensor, "2"], b: Float[Tensor, "2"], n: int) -> Float[Tensor, ""]:
    """Standard deviation of Σ_{i<j} a_ij b_π(i)π(j) over all permutations π, both tables symmetric and of sum 0.

    Squared, the sum has pairs of pairs that share two tokens, one, or none; each kind has its mean over permutations.
    """
    shared = [torch.stack([2 * x[0], 4 * x[1], -2 * x[0] - 4 * x[1]]) for x in (a, b)]
    ways = torch.tensor([2 * n * (n - 1), 4 * n * (n - 1) * (n - 2), n * (n - 1) * (n - 2) * (n - 3)]).to(a)
    return ((shared[0] * shared[1] / ways).sum().clamp(min=0) / 4).sqrt()


def neighbours_of(d: Float[Tensor, "n n"], k: int) -> Int[Tensor, "n k"]:
    """The k nearest other tokens of each; of equally near ones the earlier."""
    far = d + torch.diag(d.new_full((len(d),), float("inf")))
    near = far.topk(k + 1, largest=False)
    tied = near.values[:, k] == near.values[:, k - 1]  # which of those at the border belong to the nearest?
    found = near.indices[:, :k]
    found[tied] = far[tied].sort(dim=-1, stable=True).indices[:, :k]
    return found


def overlap(a: Int[Tensor, "n k"], b: Int[Tensor, "n k"]) -> Float[Tensor, ""]:
    """Mean share of neighbours in common."""
    return (a[:, :, None] == b[:, None, :]).any(-1).double().mean()


GEOMETRY_KEPT = Analysis(
    name="geometry_kept",
    question="Are tokens that were near each other still near, layer by layer?",
    ask=geometry_kept,
    needs="trace",
    fields={
        "rsa": Field(
            ("point", "reference"),
            "Spearman correlation of all pairwise distances at this point with those at the reference: 1 the same geometry",
            null="rsa_null",
            null_sd="rsa_null_sd",
        ),
        "rsa_null": Field(
            ("point", "reference"), "mean of the same over all permutations of the reference's tokens: 0"
        ),
        "rsa_null_sd": Field(
            ("point", "reference"), "standard deviation of the same over all permutations, exact (Mantel 1967)"
        ),
        "neighbours": Field(
            ("point", "reference"),
            "share of a token's nearest tokens at the reference that are still among its nearest",
            null="neighbours_null",
        ),
        "neighbours_null": Field((), "the same at random: nearest / (n − 1)"),
        "erasure": Field(
            ("layer", "head"),
            "Σ ⟨Δ_h, x_last − x_after⟩ / Σ ‖Δ_h‖² over tokens, in the stream as it is: −1 where all that is written later takes "
            "back what the head wrote, 0 where it leaves it alone, positive where it writes more of the same",
        ),
        "erasure_mlp": Field(("layer",), "the same for what the MLP of a layer wrote"),
    },
)
