"""What one head makes of the cloud: where it pushes every token, how it sees them, which pairs it tears apart or glues."""

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.covers.agreement.query_agreement import by_query, directions, drawn_queries, sides
from rheoscope.covers.distorted_pairs.analysis import changed
from rheoscope.covers.distortion.analysis import IMAGES, images_by
from rheoscope.covers.layer_inputs import Read, read, read_many, tokens
from rheoscope.space.masked_means import centred
from rheoscope.space.safe_arithmetic import exact
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.studio import wire
from rheoscope.studio.projected_points import fitted

if TYPE_CHECKING:
    from rheoscope.studio.session import Entry, Session

PAIRS = 5
"""Torn and glued pairs that are told of an image."""
LEAST_TOKENS = 3
"""Tokens that are not massive, without which an image has no pairs to speak of."""
LEAST_KEYS = 8
"""Keys without which no agreement is told of a query, as the analysis has it."""
Flat = Float[Tensor, "n 2"]


@torch.no_grad()
def moves(session: "Session", entry: "Entry", layer: int, head: int, axes: str, space: str) -> bytes:
    """What the content that a head carries adds to every token, on the axes of the cloud, and how much of it they show.

    On the sphere it is the way to where the direction of x + Δ lies. The bias of values, which no head owns, is left out.
    """
    trace = entry.trace
    trace.view.heads_of(layer, head)
    on = session.axes(entry, axes, space)
    x, by = exact(trace.read_by(layer)), exact(trace.parts(layer)[0][head])
    apart = unit_of(x + by) - unit_of(x) if space == "sphere" else by
    flat = apart @ on.along
    whole = apart.square().sum().clamp(min=torch.finfo(flat.dtype).tiny)
    header = entry.about(layer, head) | {
        "space": space,
        "axes": axes,
        "step": str(trace.steps[trace.where[layer]]),
        "share": float(flat.square().sum() / whole),
    }
    return wire.packed(header, {"moves": wire.in_bytes(flat.cpu().numpy(), ["token", "axis"])})


def unit_of(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Directions, as the cloud on the sphere has them."""
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-30)


@torch.no_grad()
def images(entry: "Entry", layer: int, head: int) -> bytes:
    """The cloud that a layer reads (E) beside its query, key and content image by one head, each on its own two widest directions.

    With them: how much of each these directions show, the pairs whose place among all pairs the head changes most, and the
    agreement of every query. Massive tokens are missing.
    """
    trace = entry.trace
    trace.view.heads_of(layer, head)
    seen = read(trace, layer, tokens(trace, False, least=LEAST_TOKENS))
    E, share = flattened(seen.hat.double())
    flat, shares, pairs = {"E": E}, {"E": share}, {}
    M, F = (A[head : head + 1] for A in (seen.heads.M(), seen.heads.F()))
    for name, image in zip(IMAGES, images_by(M, F), strict=True):
        cloud = image.of(seen.hat.double())[0]
        own, shares[name] = flattened(cloud)
        flat[name], pairs[name] = turned_to(E, own), distorted(seen, cloud)
    arrays = {name: wire.in_bytes(_of_all(trace, seen, one), ["token", "axis"]) for name, one in flat.items()}
    arrays["agreement"] = wire.in_bytes(_of_all(trace, seen, agreement_of(trace, seen, head)), ["token"])
    return wire.packed(entry.about(layer, head) | {"shares": shares, "pairs": pairs}, arrays)


def flattened(cloud: Float[Tensor, "n d"]) -> tuple[Flat, list[float]]:
    """A cloud on the two directions in which it spreads most, and the share of its variance that each shows."""
    on = fitted(cloud)
    apart = cloud - on.centre
    flat = apart @ on.along[:, :2]
    whole = apart.square().sum().clamp(min=torch.finfo(flat.dtype).tiny)
    return flat, (flat.square().sum(0) / whole).tolist()


def turned_to(goal: Flat, own: Flat) -> Flat:
    """Turned and mirrored to lie as near to another picture of the same tokens as it can (Procrustes): no distance changes."""
    left, _, right = torch.linalg.svd(own.mT @ goal)
    return own @ left @ right


def agreement_of(trace: Trace, seen: Read, head: int) -> Float[Tensor, " n"]:
    """Of every query the correlation whose mean is the agreement of a head; NaN where it has too few keys."""
    traces = Traces.of(trace)
    kept = torch.zeros_like(traces.real).index_fill(1, seen.at, True)
    one = read_many(traces, seen.layer, kept)
    start, drawn = (
        directions(centred(exact(traces.points[:, 0]), kept)),
        drawn_queries(kept.cpu(), None, 0, len(trace), kept.device),
    )
    q, k = (side[:, :, [head]] for side in sides(one, None))
    ((enough, five),) = by_query(one, q, k, start, LEAST_KEYS, drawn.blocks)
    return torch.where(enough[0], five[0, 0, 0, :, 0].double(), torch.nan)


def distorted(seen: Read, image: Float[Tensor, "n r"]) -> dict[str, list[dict[str, Any]]]:
    """Torn and glued pairs of one image, the most changed first."""
    found = changed(seen, image)
    order: Int[Tensor, " pairs"] = (found["after"] - found["before"]).argsort(stable=True)
    return {
        kind: [
            {"first": int(found["first"][at]), "second": int(found["second"][at])}
            | {side: round(float(found[side][at]), 4) for side in ("before", "after")}
            for at in chosen[:PAIRS].tolist()
        ]
        for kind, chosen in (("torn", order.flip(0)), ("glued", order))
    }


def _of_all(trace: Trace, seen: Read, values: Tensor) -> Any:
    """Values of the tokens that count, among all tokens of the text."""
    every = values.new_full((len(trace), *values.shape[1:]), torch.nan)
    every[seen.at] = values
    return every.cpu().numpy()
