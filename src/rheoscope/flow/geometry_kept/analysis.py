"""Do the additive updates keep the geometry that the tokens had? Distances and neighbours against earlier clouds."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.lower.block_size import numbers_in_cache
from rheoscope.attention.lower.kernels.triton_lowerings import TRITON
from rheoscope.flow.cloud import clouds, placed, points_of
from rheoscope.flow.geometry_kept.token_pairs import Pairs, drawn_pairs, every_pair, sampling_error
from rheoscope.flow.head_motion import kept_outputs, lengths_and_products
from rheoscope.running.progress import tick
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.components import mlp_at
from rheoscope.space.float32_products import difference, inner
from rheoscope.space.masked_means import There, centred, kept, kept_rows, mean
from rheoscope.space.pair_distances import distances, rounding
from rheoscope.space.safe_arithmetic import exact, share
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces

if TYPE_CHECKING:
    import xarray

LONGEST, FEW = 16384, 16
"""Tokens of a row, and nearest ones of it, up to which a GPU finds these in one pass."""


@torch.no_grad()
def geometry_kept(
    trace: Trace,
    space: str = "raw",
    strides: Sequence[int] = (1, 4),
    nearest: int = 5,
    pairs: int | None = None,
    seed: int = 0,
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
    (layer, head): `erasure`; (layer): `erasure_mlp`. With `pairs`, RSA is of so many pairs drawn at random (with replacement, the same
    ones at every point, by `seed`) instead of all, and `rsa_error` says how far that may be off.

    **Laws** 1 against itself; unchanged by a turn, a shift and a scale of either cloud; the null of RSA has mean 0.

    **Source** Kriegeskorte et al. 2008 (RSA), Mantel 1967 (its null).

    >>> import rheoscope as rs
    >>> found = rs.geometry_kept(rs.load().trace("The keys to the cabinet are on the table in the hall"))
    >>> round(float(found.rsa.sel(point="embed", reference="embed")), 6)
    1.0
    """
    seen = clouds(trace, space, "layer", keep_massive, least=4)
    _refuse(len(seen.tokens), nearest, pairs)
    names, there = ["embed", *(f"-{stride}" for stride in strides)], trace.ordinary(keep_massive)
    values = kernel((centred(x.double()[None], None) for x in seen), None, strides, nearest, pairs, seed)
    values = {name: x[0] for name, x in values.items()} | erasures(trace, None if bool(there.all()) else there)
    numbers = {"layer": range(trace.view.layers), "head": range(trace.view.heads)}
    coords = {"point": list(seen.steps), "reference": names} | numbers
    drawn = {} if pairs is None else {"pairs": pairs, "seed": seed}
    return GEOMETRY_KEPT.answer(values, coords, {"nearest": nearest} | drawn | seen.attributes)


@torch.no_grad()
def batch(
    traces: Traces,
    space: str = "raw",
    strides: Sequence[int] = (1, 4),
    nearest: int = 5,
    pairs: int | None = None,
    seed: int = 0,
    keep_massive: bool = False,
) -> dict[str, Tensor]:
    """Every field of `geometry_kept`, of many texts at once."""
    there, view = traces.counted(keep_massive, least=4), traces.view
    _refuse(traces.fewest(keep_massive), nearest, pairs)
    half = view.as_read(traces.points[:0]).dtype.itemsize < 4
    seen = (placed(view, traces.points[:, at], space) for at in points_of(traces, "layer"))
    clouds = (view.as_read(centred(x, there)) if half else centred(x.double(), there) for x in seen)
    return kernel(clouds, there, strides, nearest, pairs, seed) | erasures(traces, there)


def _refuse(n: int, nearest: int, pairs: int | None) -> None:
    if not 1 <= nearest < n - 1:
        raise RheoscopeError(
            f"of {n} tokens, the nearest are from 1 to {n - 2}, got nearest={nearest}; type nearest={max(1, min(5, n - 2))}"
        )
    if pairs is not None and pairs < 4:
        raise RheoscopeError(f"pairs that are drawn are 4 or more, got {pairs}; type pairs=100000, or None for all")


def kernel(
    clouds: Iterable[Float[Tensor, "b n d"]],
    there: There,
    strides: Sequence[int],
    nearest: int,
    pairs: int | None,
    seed: int,
) -> dict[str, Tensor]:
    """Every cloud of every text, seen from its mean, against the first and against those `strides` before it."""
    chosen, apart, near = None, [], []
    for x in clouds:
        table = inner(x)
        chosen = chosen or (every_pair(table, there) if pairs is None else drawn_pairs(table, there, pairs, seed))
        far, close = of_cloud(table, chosen, nearest, there)
        apart.append(far)
        near.append(close)
    assert chosen is not None, "every text has a first cloud"
    some = max(1, numbers_in_cache(apart[0].device) // apart[0].numel())  # a GPU waits for each thing that it is asked
    rank = torch.cat([chosen.ranks(torch.stack(apart[low : low + some])) for low in range(0, len(apart), some)])
    close, row = torch.stack(near), chosen.pulls(rank, near[0].shape[-2])
    table = rank.new_full((3, 1 + len(strides), len(rank), rank.shape[1]), float("nan"))
    for column, back in enumerate([0, *strides]):
        now, was = (slice(None), slice(1)) if not back else (slice(back, None), slice(None, max(0, len(rank) - back)))
        same = torch.linalg.vecdot(rank[now], rank[was]), overlap(close[now], close[was], there)
        table[:, column, now] = torch.stack([same[0], mantel(row[now], row[was], chosen.tokens), same[1]])
    rsa, spread, neighbours = table.permute(0, 3, 2, 1)
    found = {"rsa": rsa, "rsa_null": 0 * rsa, "rsa_null_sd": spread, "neighbours": neighbours}
    found["neighbours_null"] = nearest / (chosen.tokens - 1)
    return found if pairs is None else found | {"rsa_error": sampling_error(rsa, pairs)}


def of_cloud(
    table: Float[Tensor, "b n n"], pairs: Pairs, nearest: int, there: There
) -> tuple[Float[Tensor, "b pairs"], Int[Tensor, "b n k"]]:
    """Distances of pairs, and the nearest of every token, from inner products; on a GPU no table of distances is made."""
    if TRITON and table.is_cuda and table.dtype == torch.float32 and table.shape[-1] <= LONGEST and nearest <= FEW:
        from rheoscope.flow.kernels import nearest as kernels  # Triton, which not every machine has

        return pairs.from_inner(table), kernels.nearest(table, nearest, there, rounding(table.dtype))
    far = distances(table)
    return pairs.of(far), neighbours_of(far, nearest, there)


def erasures(trace: Trace | Traces, there: There) -> dict[str, Tensor]:
    """How much of what each head and each MLP wrote is taken back by all that is written after it."""

    points, sums = trace.points, exact(trace.points[:0]).dtype
    dtype = trace.view.as_read(exact(points[:0])).dtype

    def way(start: int, end: int) -> Float[Tensor, "*b n d"]:
        return kept_rows(difference(exact(points[..., end, :, :]), exact(points[..., start, :, :]), dtype), there)

    layers, again, sizes = range(trace.view.layers), [], []
    for layer in layers:
        tick(layer, trace.view.layers)
        end = mlp_at(trace, layer)
        wrote = way(end - 1, end)
        again.append((wrote * way(end, -1)).sum((-2, -1), dtype=sums))
        sizes.append(torch.linalg.vector_norm(wrote, dim=(-2, -1), dtype=sums))
    along, squares = of_heads(trace, (way(trace.middle[layer], -1) for layer in layers), there)
    mlps = share(torch.stack(again, -1), torch.stack(sizes, -1).square())
    return {"erasure": share(along, squares), "erasure_mlp": mlps}


def of_heads(
    trace: Trace | Traces, later: Iterable[Float[Tensor, "*b n d"]], there: There
) -> tuple[Float[Tensor, "*b layer h"], Float[Tensor, "*b layer h"]]:
    """Σ ⟨Δ_h, later⟩ and Σ ‖Δ_h‖² over tokens, of every head; `later` is 0 where a token does not count."""
    given = kept_outputs(trace)
    if given is not None:
        length, along = lengths_and_products(trace.view, given, later)
        return along.sum(-1).movedim(0, -2), kept(length.square().movedim(0, -3), there).sum(-1)
    each = [
        (made.along(way).sum(-1), kept(made.squares(), there).sum(-1))
        for made, way in zip(map(trace.carried, range(trace.view.layers)), later, strict=True)
    ]
    along, squares = (torch.stack(part, -2) for part in zip(*each, strict=True))
    return along, squares


def mantel(a: Float[Tensor, "*p b 2"], b: Float[Tensor, "*#p b 2"], n: Float[Tensor, " b"]) -> Float[Tensor, "*p b"]:
    """Standard deviation of Σ_{i<j} a_ij b_π(i)π(j) over all permutations π, both tables symmetric and of sum 0, of n tokens.

    Squared, the sum has pairs of pairs that share two tokens, one, or none; each kind has its mean over permutations.
    """
    shared = [torch.stack([2 * x[..., 0], 4 * x[..., 1], -2 * x[..., 0] - 4 * x[..., 1]], -1) for x in (a, b)]
    ways = torch.stack([2 * n * (n - 1), 4 * n * (n - 1) * (n - 2), n * (n - 1) * (n - 2) * (n - 3)], -1).to(a)
    return ((shared[0] * shared[1] / ways).sum(-1).clamp(min=0) / 4).sqrt()


def neighbours_of(d: Float[Tensor, "*b n n"], k: int, there: There = None) -> Int[Tensor, "*b n k"]:
    """The k nearest other tokens of each; of equally near ones the earlier."""
    far = kept(d, there, torch.inf) + torch.diag(d.new_full(d.shape[-1:], torch.inf))
    near = far.topk(k + 1, largest=False)
    tied = near.values[..., k] == near.values[..., k - 1]  # which of those at the border belong to the nearest?
    found = near.indices[..., :k]
    found[tied] = far[tied].sort(dim=-1, stable=True).indices[:, :k]
    return found


def overlap(a: Int[Tensor, "p b n k"], b: Int[Tensor, "#p b n k"], there: There) -> Float[Tensor, "p b"]:
    """Mean share of neighbours in common."""
    shared = (a[..., :, None] == b[..., None, :]).any(-1).double().mean(-1)
    return mean(shared.transpose(0, 1), there).mT


GEOMETRY_KEPT = Analysis(
    name="geometry_kept",
    question="Are tokens that were near each other still near, layer by layer?",
    ask=geometry_kept,
    batch=batch,
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
        "rsa_error": Field(
            ("point", "reference"),
            "standard error of rsa where pairs are drawn at random: (1 − r²) √((1 + r²/2)/(pairs − 3))",
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
