"""How one head acts on a cloud: its update of every token, its images, and the pairs it distorts most."""

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.covers.agreement.query_agreement import directions, query_correlations, query_key_vectors, sample_queries
from rheoscope.covers.distorted_pairs.analysis import rank_changes
from rheoscope.covers.distortion.analysis import IMAGES
from rheoscope.covers.layer_inputs import LayerInput, included_positions, read_batch_layer, read_layer
from rheoscope.covers.operator_images import images_of_operators
from rheoscope.space.masked_means import centre_points
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.studio import wire
from rheoscope.studio.projected_points import fit_axes

if TYPE_CHECKING:
    from rheoscope.studio.session import Session, TextEntry

N_PAIRS = 5
"""Number of separated and of merged pairs listed per image."""
MIN_TOKENS = 3
"""Minimum number of non-massive tokens for an image."""
MIN_KEYS = 8
"""Minimum number of keys of a query for its agreement, as in the analysis."""
PlanePoints = Float[Tensor, "n 2"]


@torch.no_grad()
def pack_displacements(
    session: "Session", entry: "TextEntry", layer: int, head: int, axes_name: str, space: str
) -> bytes:
    """The update of every token by one head, on the axes of the cloud, and the fraction of it that they show.

    On the sphere it is the difference of the directions of x + Δ and x. The value bias belongs to no head and is left out.
    """
    trace = entry.trace
    trace.view.heads_of(layer, head)
    axes = session.cached_axes(entry, axes_name, space)
    x, head_update = at_least_float32(trace.layer_input(layer)), at_least_float32(trace.attention_parts(layer)[0][head])
    displacement = unit_rows(x + head_update) - unit_rows(x) if space == "sphere" else head_update
    projected = displacement @ axes.directions
    total_square = displacement.square().sum().clamp(min=torch.finfo(projected.dtype).tiny)
    header = entry.head_facts(layer, head) | {
        "space": space,
        "axes": axes_name,
        "step": str(trace.steps[trace.input_steps[layer]]),
        "share": float(projected.square().sum() / total_square),
    }
    return wire.pack_envelope(header, {"moves": wire.quantise(projected.cpu().numpy(), ["token", "axis"])})


def unit_rows(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Rows scaled to unit norm."""
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-30)


@torch.no_grad()
def pack_images(entry: "TextEntry", layer: int, head: int) -> bytes:
    """The input cloud of a layer (E) and its three images under one head, each on its first two principal axes.

    The header has the variance fractions of the axes and the pairs whose distance rank changes most. An array has the
    agreement of every query. Massive tokens are missing.
    """
    trace = entry.trace
    trace.view.heads_of(layer, head)
    layer_input = read_layer(trace, layer, included_positions(trace, False, min_tokens=MIN_TOKENS))
    E, E_fractions = project_to_plane(layer_input.x_hat.double())
    planes, fractions, pairs = {"E": E}, {"E": E_fractions}, {}
    M, F = (A[head : head + 1] for A in (layer_input.heads.M(), layer_input.heads.F()))
    for name, image in zip(IMAGES, images_of_operators(M, F), strict=True):
        cloud = image.apply(layer_input.x_hat.double())[0]
        plane, fractions[name] = project_to_plane(cloud)
        planes[name], pairs[name] = align_to(E, plane), most_changed_pairs(layer_input, cloud)
    arrays = {
        name: wire.quantise(_scatter_to_tokens(trace, layer_input, plane_points), ["token", "axis"])
        for name, plane_points in planes.items()
    }
    arrays["agreement"] = wire.quantise(
        _scatter_to_tokens(trace, layer_input, query_agreement(trace, layer_input, head)), ["token"]
    )
    return wire.pack_envelope(entry.head_facts(layer, head) | {"shares": fractions, "pairs": pairs}, arrays)


def project_to_plane(cloud: Float[Tensor, "n d"]) -> tuple[PlanePoints, list[float]]:
    """A cloud on its first two principal axes, and the fraction of its variance along each."""
    axes = fit_axes(cloud)
    offsets = cloud - axes.centre
    plane = offsets @ axes.directions[:, :2]
    total_square = offsets.square().sum().clamp(min=torch.finfo(plane.dtype).tiny)
    return plane, (plane.square().sum(0) / total_square).tolist()


def align_to(target: PlanePoints, points: PlanePoints) -> PlanePoints:
    """Points rotated and reflected to fit the target as closely as possible (Procrustes)."""
    left, _, right = torch.linalg.svd(points.mT @ target)
    return points @ left @ right


def query_agreement(trace: Trace, layer_input: LayerInput, head: int) -> Float[Tensor, " n"]:
    """The correlation of every query, whose mean is the agreement of the head. NaN for queries with too few keys."""
    traces = Traces.from_trace(trace)
    is_included = torch.zeros_like(traces.is_token).index_fill(1, layer_input.positions, True)
    batch_input = read_batch_layer(traces, layer_input.layer, is_included)
    start_directions, sampled = (
        directions(centre_points(at_least_float32(traces.points[:, 0]), is_included)),
        sample_queries(is_included.cpu(), None, 0, len(trace), is_included.device),
    )
    q, k = (vectors[:, :, [head]] for vectors in query_key_vectors(batch_input, None))
    ((has_enough_keys, correlations),) = query_correlations(
        batch_input, q, k, start_directions, MIN_KEYS, sampled.blocks
    )
    return torch.where(has_enough_keys[0], correlations[0, 0, 0, :, 0].double(), torch.nan)


def most_changed_pairs(layer_input: LayerInput, image: Float[Tensor, "n r"]) -> dict[str, list[dict[str, Any]]]:
    """The most separated and the most merged pairs of one image."""
    pair_ranks = rank_changes(layer_input, image)
    rank_before, rank_after = pair_ranks["distance_rank_before"], pair_ranks["distance_rank_after"]
    order: Int[Tensor, " pairs"] = (rank_after - rank_before).argsort(stable=True)
    return {
        kind: [
            {
                "first": int(pair_ranks["earlier_token"][pair_index]),
                "second": int(pair_ranks["later_token"][pair_index]),
                "before": round(float(rank_before[pair_index]), 4),
                "after": round(float(rank_after[pair_index]), 4),
            }
            for pair_index in pair_order[:N_PAIRS].tolist()
        ]
        for kind, pair_order in (("separated", order.flip(0)), ("merged", order))
    }


def _scatter_to_tokens(trace: Trace, layer_input: LayerInput, values: Tensor) -> Any:
    """Values of the included tokens as an array over all tokens, NaN elsewhere."""
    all_values = values.new_full((len(trace), *values.shape[1:]), torch.nan)
    all_values[layer_input.positions] = values
    return all_values.cpu().numpy()
