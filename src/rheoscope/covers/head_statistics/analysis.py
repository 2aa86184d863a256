"""Attention statistics of every head on a text: entropy, sink weight, largest weight and distance."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.masked_means import masked_mean
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces

if TYPE_CHECKING:
    import xarray

MEAN_FIELDS = {
    "entropy": "entropy",
    "first_token_weight": "first",
    "max_weight": "top",
    "attention_distance": "distance",
}
"""Field → the statistic of a query whose mean over queries it is."""


@torch.no_grad()
def head_statistics(trace: Trace, progress: Callable[[int, int], None] | None = None) -> "xarray.Dataset":
    """Statistics of the attention weights of every head on one text.

    **Question** Where does each head look, how sharply and how far? One pass over all heads answers it. Memory grows
    linearly with the length of the text.

    **Formula** Means over queries i of −Σ_j α_ij log α_ij, α_i0, max_j α_ij and Σ_j α_ij |i − j|. The last field is
    max_j Σ_i α_ij / n.

    **Returns** (layer, head): `entropy` in nats, `first_token_weight`, `max_weight`, `attention_distance` in tokens and
    `max_received_share`.

    **Laws** The values equal those computed from `trace.weights(layer, head)`. No reparametrisation that preserves the
    logits changes them.

    **See also** `head_types` compares such weights with uniform attention and names the heads. `trace.statistics(layer)`
    has the same statistics for every token.

    >>> import rheoscope as rs
    >>> result = rs.head_statistics(rs.load().trace("The keys to the cabinet are on the table"))
    >>> bool((result.first_token_weight <= result.max_weight).all())
    True
    """
    values = {name: x[0] for name, x in batch(Traces.from_trace(trace), progress).items()}
    coords = {"layer": range(trace.view.layers), "head": range(trace.view.heads)}
    return HEAD_STATISTICS.label(values, coords, {"n": len(trace)} | trace.provenance)


@torch.no_grad()
def batch(traces: Traces, progress: Callable[[int, int], None] | None = None) -> dict[str, Float[Tensor, "b layer h"]]:
    """The statistics of many texts at once."""
    rows = []
    for layer in range(traces.view.layers):
        rows.append(kernel(traces, layer))
        if progress is not None:
            progress(layer + 1, traces.view.layers)
    return {name: torch.stack([row[name] for row in rows], 1) for name in rows[0]}


def kernel(traces: Traces, layer: int) -> dict[str, Float[Tensor, "b h"]]:
    """The statistics of all heads of one layer."""
    statistics, valid = traces.statistics(layer), None if traces.is_unpadded else traces.is_token
    means = {field: masked_mean(statistics[name], valid) for field, name in MEAN_FIELDS.items()}
    return means | {"max_received_share": statistics["received"].amax(-1) / traces.lengths[:, None]}


HEAD_DIMS = ("layer", "head")
HEAD_STATISTICS = Analysis(
    name="head_statistics",
    question="Where does each head look, how sharply and how far?",
    ask=head_statistics,
    needs="trace",
    corpus=3,
    atlas=("entropy", "first_token_weight", "attention_distance", "max_received_share"),
    batch=batch,
    fields={
        "entropy": Field(
            HEAD_DIMS,
            "entropy of the weights of a query, mean over queries; 0 if each query attends to one token",
            "nats",
        ),
        "first_token_weight": Field(HEAD_DIMS, "weight on the first token, the usual sink, mean over queries"),
        "max_weight": Field(HEAD_DIMS, "largest weight of a query, mean over queries"),
        "attention_distance": Field(
            HEAD_DIMS, "attention-weighted distance Σ_j α_ij |i − j| to the keys, mean over queries", "tokens"
        ),
        "max_received_share": Field(HEAD_DIMS, "share of all attention that the most attended token receives"),
    },
)
