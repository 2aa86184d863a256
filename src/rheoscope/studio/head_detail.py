"""What one head makes of the cloud: where it pushes every token, how it sees them, which pairs it tears apart or glues."""

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.covers.agreement.query_agreement import directions, query_correlations, query_key_vectors, sample_queries
from rheoscope.covers.distorted_pairs.analysis import rank_changes
from rheoscope.covers.distortion.analysis import IMAGES, images_of_operators
from rheoscope.covers.layer_inputs import LayerInput, included_positions, read_batch_layer, read_layer
from rheoscope.space.masked_means import centre_points
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.studio import wire
from rheoscope.studio.projected_points import fit_axes

if TYPE_CHECKING:
    from rheoscope.studio.session import Session, TextEntry

N_PAIRS = 5
"""Torn and glued pairs that are told of an image."""
MIN_TOKENS = 3
"""Tokens that are not massive, without which an image has no pairs to speak of."""
MIN_KEYS = 8
"""Keys without which no agreement is told of a query, as the analysis has it."""
PlanePoints = Float[Tensor, "n 2"]


@torch.no_grad()
def pack_displacements(
    session: "Session", entry: "TextEntry", layer: int, head: int, axes_name: str, space: str
) -> bytes:
    """What the content that a head carries adds to every token, on the axes of the cloud, and how much of it they show.

    On the sphere it is the way to where the direction of x + Δ lies. The bias of values, which no head owns, is left out.
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
    """Directions, as the cloud on the sphere has them."""
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-30)


@torch.no_grad()
def pack_images(entry: "TextEntry", layer: int, head: int) -> bytes:
    """The cloud that a layer reads (E) beside its query, key and content image by one head, each on its own two widest directions.

    With them: how much of each these directions show, the pairs whose place among all pairs the head changes most, and the
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
    """A cloud on the two directions in which it spreads most, and the share of its variance that each shows."""
    axes = fit_axes(cloud)
    offsets = cloud - axes.centre
    plane = offsets @ axes.directions[:, :2]
    total_square = offsets.square().sum().clamp(min=torch.finfo(plane.dtype).tiny)
    return plane, (plane.square().sum(0) / total_square).tolist()


def align_to(target: PlanePoints, points: PlanePoints) -> PlanePoints:
    """Turned and mirrored to lie as near to another picture of the same tokens as it can (Procrustes): no distance changes."""
    left, _, right = torch.linalg.svd(points.mT @ target)
    return points @ left @ right


def query_agreement(trace: Trace, layer_input: LayerInput, head: int) -> Float[Tensor, " n"]:
    """Of every query the correlation whose mean is the agreement of a head; NaN where it has too few keys."""
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
    """Torn and glued pairs of one image, the most changed first."""
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
        for kind, pair_order in (("torn", order.flip(0)), ("glued", order))
    }


def _scatter_to_tokens(trace: Trace, layer_input: LayerInput, values: Tensor) -> Any:
    """Values of the tokens that count, among all tokens of the text."""
    all_values = values.new_full((len(trace), *values.shape[1:]), torch.nan)
    all_values[layer_input.positions] = values
    return all_values.cpu().numpy()
