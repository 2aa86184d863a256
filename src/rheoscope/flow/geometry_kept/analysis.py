"""Preservation of distances and neighbours, compared with earlier clouds, and erasure of head updates."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.lower.block_size import cache_block_numel
from rheoscope.attention.lower.kernels.triton_lowerings import HAS_TRITON
from rheoscope.flow.cloud import points_at_grain, select_clouds, to_space
from rheoscope.flow.geometry_kept.token_pairs import Pairs, all_pairs, sample_pairs, sampling_se
from rheoscope.flow.head_motion import lengths_and_products, recorded_head_outputs
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.running.progress import tick
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.components import mlp_step
from rheoscope.space.float32_products import pairwise_inner, rounded_difference
from rheoscope.space.masked_means import ValidTokens, centre_points, fill_invalid, masked_mean, zero_invalid_rows
from rheoscope.space.pair_distances import distance_rounding, distances
from rheoscope.space.results import Results
from rheoscope.space.safe_arithmetic import at_least_float32, safe_divide
from rheoscope.space.settings import Bounds, Neighbours, Seed, SpaceName
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces

if TYPE_CHECKING:
    import xarray

MAX_ROW_TOKENS, MAX_NEIGHBOURS = 16384, 16
"""The largest numbers of tokens and of neighbours that the GPU kernel supports."""


@torch.no_grad()
def geometry_kept(
    trace: Trace,
    space: SpaceName = "raw",
    strides: Sequence[Annotated[int, Bounds(1, 10_000)]] = (1, 4),
    n_neighbours: Neighbours = 5,
    max_pairs: Annotated[int, Bounds(1, 10**9)] | None = None,
    seed: Seed = 0,
    keep_massive: bool = False,
) -> "xarray.Dataset":
    """How much of the geometry of the tokens is preserved, layer by layer.

    **Question** Are tokens that were close to each other still close after this layer?

    **Formula** RSA is the Spearman correlation of the n(n−1)/2 pairwise distances of two clouds. `neighbours` is the share of a
    token's nearest tokens that are still among its nearest, averaged over tokens. Of equally near tokens the earlier counts as nearer,
    so repeated tokens at the embedding have neighbours by position. The reference is the embedding (`"embed"`) or the cloud `stride`
    layers before (`"-1"`, `"-4"`).

    Erasure is Σ ⟨Δ_h, x_last − x_after⟩ / Σ ‖Δ_h‖², the ratio of two sums over tokens, not the mean of ratios. Δ_h is the head's
    update and x_after the point after its attention.

    **Returns** (point, reference): `rsa` and `neighbours` with their nulls; NaN if the reference lies before the embedding.
    (layer, head): `erasure`. (layer): `erasure_mlp`. With `max_pairs` also `rsa_error`, the standard error of the sampling.

    **Settings** `strides` are the distances to the earlier references, in layers. `n_neighbours` is the number of nearest tokens.
    `max_pairs` samples this many pairs with replacement instead of using all, the same pairs at every point.

    **Laws** A cloud compared with itself gives 1. Rotating, shifting or scaling either cloud changes nothing. The null of RSA has
    mean 0.

    **Source** Kriegeskorte et al. 2008 (RSA), Mantel 1967 (its null).

    >>> import rheoscope as rs
    >>> result = rs.geometry_kept(rs.load().trace("The keys to the cabinet are on the table in the hall"))
    >>> round(float(result.rsa.sel(point="embed", reference="embed")), 6)
    1.0
    """
    clouds = select_clouds(trace, space, "layer", keep_massive, min_tokens=4)
    _check_settings(len(clouds.positions), n_neighbours, max_pairs)
    reference_names, valid = ["embed", *(f"-{stride}" for stride in strides)], trace.valid_mask(keep_massive)
    values = kernel(
        (centre_points(x.double()[None], None) for x in clouds), None, strides, n_neighbours, max_pairs, seed
    )
    values = {name: x[0] for name, x in values.items()} | erasures(trace, None if bool(valid.all()) else valid)
    layer_coords = {"layer": range(trace.view.layers), "head": range(trace.view.heads)}
    coords = {"point": list(clouds.steps), "reference": reference_names} | layer_coords
    sampling_settings = {} if max_pairs is None else {"max_pairs": max_pairs, "seed": seed}
    return GEOMETRY_KEPT.label(values, coords, {"n_neighbours": n_neighbours} | sampling_settings | clouds.attributes)


@torch.no_grad()
def batch(
    traces: Traces,
    space: str = "raw",
    strides: Sequence[int] = (1, 4),
    n_neighbours: int = 5,
    max_pairs: int | None = None,
    seed: int = 0,
    keep_massive: bool = False,
) -> dict[str, Tensor]:
    """Every field of `geometry_kept` for many texts at once."""
    valid, view = traces.valid_tokens(keep_massive, min_tokens=4), traces.view
    _check_settings(traces.min_valid_tokens(keep_massive), n_neighbours, max_pairs)
    half_precision = view.to_model_precision(traces.points[:0]).dtype.itemsize < 4
    space_points = (
        to_space(view, traces.points[:, point_index], space) for point_index in points_at_grain(traces, "layer")
    )
    clouds = (
        view.to_model_precision(centre_points(x, valid)) if half_precision else centre_points(x.double(), valid)
        for x in space_points
    )
    return kernel(clouds, valid, strides, n_neighbours, max_pairs, seed) | erasures(traces, valid)


def _check_settings(n: int, n_neighbours: int, max_pairs: int | None) -> None:
    if not 1 <= n_neighbours < n - 1:
        raise RheoscopeError(
            Message(
                "with {n} tokens, n_neighbours must lie between 1 and {high}, got {received}",
                n=n,
                high=n - 2,
                received=n_neighbours,
            ),
            use(n_neighbours=max(1, min(5, n - 2))),
        )
    if max_pairs is not None and max_pairs < 4:
        raise RheoscopeError(
            Message("max_pairs must be at least {low}, got {received}", low=4, received=max_pairs),
            use(max_pairs=100_000),
        )


def kernel(
    clouds: Iterable[Float[Tensor, "b n d"]],
    valid: ValidTokens,
    strides: Sequence[int],
    n_neighbours: int,
    max_pairs: int | None,
    seed: int,
) -> dict[str, Tensor]:
    """Compare every centred cloud with the first cloud and with the clouds `strides` before it, for every text."""
    token_pairs, pair_distances, neighbour_lists = None, [], []
    for x in clouds:
        table = pairwise_inner(x)
        token_pairs = token_pairs or (
            all_pairs(table, valid) if max_pairs is None else sample_pairs(table, valid, max_pairs, seed)
        )
        cloud_distances, neighbour_ids = distances_and_neighbours(table, token_pairs, n_neighbours, valid)
        pair_distances.append(cloud_distances)
        neighbour_lists.append(neighbour_ids)
    assert token_pairs is not None, "every text has at least one cloud"
    # clouds are ranked in batches to avoid launch overhead
    clouds_per_chunk = max(1, cache_block_numel(pair_distances[0].device) // pair_distances[0].numel())
    ranks = torch.cat(
        [
            token_pairs.distance_ranks(torch.stack(pair_distances[start : start + clouds_per_chunk]))
            for start in range(0, len(pair_distances), clouds_per_chunk)
        ]
    )
    neighbour_ids, moments = (
        torch.stack(neighbour_lists),
        token_pairs.mantel_moments(ranks, neighbour_lists[0].shape[-2]),
    )
    table = ranks.new_full((3, 1 + len(strides), len(ranks), ranks.shape[1]), float("nan"))
    for column, stride in enumerate([0, *strides]):
        current, earlier = (
            (slice(None), slice(1)) if not stride else (slice(stride, None), slice(None, max(0, len(ranks) - stride)))
        )
        agreement = (
            torch.linalg.vecdot(ranks[current], ranks[earlier]),
            neighbour_overlap(neighbour_ids[current], neighbour_ids[earlier], valid),
        )
        table[:, column, current] = torch.stack(
            [agreement[0], mantel_null_sd(moments[current], moments[earlier], token_pairs.n_tokens), agreement[1]]
        )
    rsa, rsa_sd, neighbours = table.permute(0, 3, 2, 1)
    values = {"rsa": rsa, "rsa_null": 0 * rsa, "rsa_null_sd": rsa_sd, "neighbours": neighbours}
    values["neighbours_null"] = n_neighbours / (token_pairs.n_tokens - 1)
    return values if max_pairs is None else values | {"rsa_error": sampling_se(rsa, max_pairs)}


def distances_and_neighbours(
    table: Float[Tensor, "b n n"], pairs: Pairs, n_neighbours: int, valid: ValidTokens
) -> tuple[Float[Tensor, "b pairs"], Int[Tensor, "b n k"]]:
    """Distances of the pairs and nearest neighbours of every token, from inner products. The GPU kernel needs no distance table."""
    if (
        HAS_TRITON
        and table.is_cuda
        and table.dtype == torch.float32
        and table.shape[-1] <= MAX_ROW_TOKENS
        and n_neighbours <= MAX_NEIGHBOURS
    ):
        from rheoscope.flow.kernels import nearest as kernels  # imports Triton, which is optional

        return pairs.distances_from_inner(table), kernels.nearest(
            table, n_neighbours, valid, distance_rounding(table.dtype)
        )
    distance = distances(table)
    return pairs.take_from(distance), nearest_neighbours(distance, n_neighbours, valid)


def erasures(trace: Trace | Traces, valid: ValidTokens) -> dict[str, Tensor]:
    """How much later updates remove or reinforce the update of each head and of each MLP."""
    points, sum_dtype = trace.points, at_least_float32(trace.points[:0]).dtype
    dtype = trace.view.to_model_precision(at_least_float32(points[:0])).dtype

    def displacement(start: int, end: int) -> Float[Tensor, "*b n d"]:
        return zero_invalid_rows(
            rounded_difference(
                at_least_float32(points[..., end, :, :]), at_least_float32(points[..., start, :, :]), dtype
            ),
            valid,
        )

    layers, later_products, update_norms = range(trace.view.layers), [], []
    for layer in layers:
        tick(layer, trace.view.layers)
        end = mlp_step(trace, layer)
        mlp_update = displacement(end - 1, end)
        later_products.append((mlp_update * displacement(end, -1)).sum((-2, -1), dtype=sum_dtype))
        update_norms.append(torch.linalg.vector_norm(mlp_update, dim=(-2, -1), dtype=sum_dtype))
    head_products, head_squares = head_products_and_squares(
        trace, (displacement(trace.mid_steps[layer], -1) for layer in layers), valid
    )
    mlp_erasure = safe_divide(torch.stack(later_products, -1), torch.stack(update_norms, -1).square())
    return {"erasure": safe_divide(head_products, head_squares), "erasure_mlp": mlp_erasure}


def head_products_and_squares(
    trace: Trace | Traces, later_displacements: Iterable[Float[Tensor, "*b n d"]], valid: ValidTokens
) -> tuple[Float[Tensor, "*b layer h"], Float[Tensor, "*b layer h"]]:
    """Σ ⟨Δ_h, later displacement⟩ and Σ ‖Δ_h‖² over tokens for every head. Displacements of invalid tokens are 0."""
    head_outputs = recorded_head_outputs(trace)
    if head_outputs is not None:
        length, products = lengths_and_products(trace.view, head_outputs, later_displacements)
        return products.sum(-1).movedim(0, -2), fill_invalid(length.square().movedim(0, -3), valid).sum(-1)
    rows = [
        (factored.inner_products_with(displacement).sum(-1), fill_invalid(factored.squared_norms, valid).sum(-1))
        for factored, displacement in zip(
            map(trace.factored_displacements, range(trace.view.layers)), later_displacements, strict=True
        )
    ]
    products, squares = (torch.stack(column, -2) for column in zip(*rows, strict=True))
    return products, squares


def mantel_null_sd(
    a: Float[Tensor, "*p b 2"], b: Float[Tensor, "*#p b 2"], n: Float[Tensor, " b"]
) -> Float[Tensor, "*p b"]:
    """Standard deviation of Σ_{i<j} a_ij b_π(i)π(j) over all permutations π of n tokens, for symmetric tables with sum 0.

    The square of the sum has terms for two pairs that share two tokens, one or none. Each kind has its own mean over permutations.
    """
    sums_by_overlap = [torch.stack([2 * x[..., 0], 4 * x[..., 1], -2 * x[..., 0] - 4 * x[..., 1]], -1) for x in (a, b)]
    counts_by_overlap = torch.stack(
        [2 * n * (n - 1), 4 * n * (n - 1) * (n - 2), n * (n - 1) * (n - 2) * (n - 3)], -1
    ).to(a)
    return ((sums_by_overlap[0] * sums_by_overlap[1] / counts_by_overlap).sum(-1).clamp(min=0) / 4).sqrt()


def nearest_neighbours(distance: Float[Tensor, "*b n n"], k: int, valid: ValidTokens = None) -> Int[Tensor, "*b n k"]:
    """The k nearest other tokens of each token. Ties are resolved by position."""
    other_distance = fill_invalid(distance, valid, torch.inf) + torch.diag(
        distance.new_full(distance.shape[-1:], torch.inf)
    )
    nearest = other_distance.topk(k + 1, largest=False)
    has_tie = nearest.values[..., k] == nearest.values[..., k - 1]
    neighbours = nearest.indices[..., :k]
    neighbours[has_tie] = other_distance[has_tie].sort(dim=-1, stable=True).indices[:, :k]
    return neighbours


def neighbour_overlap(
    a: Int[Tensor, "p b n k"], b: Int[Tensor, "#p b n k"], valid: ValidTokens
) -> Float[Tensor, "p b"]:
    """The mean share of common neighbours."""
    shared_fraction = (a[..., :, None] == b[..., None, :]).any(-1).double().mean(-1)
    return masked_mean(shared_fraction.transpose(0, 1), valid).mT


def _report_settings(results: Results) -> dict[str, Any]:
    """Fewer neighbours for a short text."""
    return {"n_neighbours": max(1, min(5, results.n_ordinary_tokens - 2))}


GEOMETRY_KEPT = Analysis(
    name="geometry_kept",
    question="Are tokens that were close to each other still close, layer by layer?",
    ask=geometry_kept,
    batch=batch,
    needs="trace",
    report=_report_settings,
    fields={
        "rsa": Field(
            ("point", "reference"),
            "Spearman correlation between the pairwise distances at this point and at the reference",
            null="rsa_null",
            null_sd="rsa_null_sd",
        ),
        "rsa_null": Field(
            ("point", "reference"), "mean RSA over all permutations of the tokens of the reference, which is 0"
        ),
        "rsa_null_sd": Field(
            ("point", "reference"), "exact standard deviation of RSA over all permutations (Mantel 1967)"
        ),
        "rsa_error": Field(
            ("point", "reference"),
            "standard error of RSA for sampled pairs, (1 − r²) √((1 + r²/2)/(max_pairs − 3))",
        ),
        "neighbours": Field(
            ("point", "reference"),
            "share of the nearest tokens at the reference that are still among the nearest, mean over tokens (of equally near "
            "tokens, the earlier)",
            null="neighbours_null",
        ),
        "neighbours_null": Field((), "expected share for random neighbours, n_neighbours / (n − 1)"),
        "erasure": Field(
            ("layer", "head"),
            "Σ ⟨Δ_h, x_last − x_after⟩ / Σ ‖Δ_h‖² over tokens: −1 if later updates remove the head's update, positive if they "
            "reinforce it",
        ),
        "erasure_mlp": Field(("layer",), "erasure of the update of the layer's MLP"),
    },
)
