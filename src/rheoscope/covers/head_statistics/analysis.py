"""Where does each head look, how sharply and how far? Means over the tokens of a text, without a table of weights."""

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


@torch.no_grad()
def head_statistics(trace: Trace, progress: Callable[[int, int], None] | None = None) -> "xarray.Dataset":
    """What the weights of every head are like on one text: sharp or even, near or far, how much goes to the first token.

    **Answers** "where does this head look?" of all heads in one pass, in memory that grows with the text and not with its square.

    **Formula** means over queries i of: −Σ_j α_ij log α_ij, α_i0, max_j α_ij, Σ_j α_ij |i − j|; and max_j Σ_i α_ij / n.

    **Gives** (layer, head): `entropy` (nats), `first` (weight on the first token, the usual sink), `top` (the largest weight),
    `distance` (tokens), `received` (the share of all attention that the most looked-at token gets).

    **Laws** equal to the same numbers of `trace.weights(layer, head)`; unchanged by every move that leaves the logits unchanged.

    **Siblings** `head_types` compares such masses with equal weights and names heads; `trace.statistics(layer)` has them token by token.

    >>> import rheoscope as rs
    >>> found = rs.head_statistics(rs.load().trace("The keys to the cabinet are on the table"))
    >>> bool(((0 <= found.first) & (found.first <= found.top)).all())
    True
    """
    values = {name: x[0] for name, x in batch(Traces.from_trace(trace), progress).items()}
    coords = {"layer": range(trace.view.layers), "head": range(trace.view.heads)}
    return HEAD_STATISTICS.label(values, coords, {"n": len(trace)} | trace.provenance)


@torch.no_grad()
def batch(traces: Traces, progress: Callable[[int, int], None] | None = None) -> dict[str, Float[Tensor, "b layer h"]]:
    """The same of many texts at once."""
    rows = []
    for layer in range(traces.view.layers):
        rows.append(kernel(traces, layer))
        if progress is not None:
            progress(layer + 1, traces.view.layers)
    return {name: torch.stack([row[name] for row in rows], 1) for name in rows[0]}


def kernel(traces: Traces, layer: int) -> dict[str, Float[Tensor, "b h"]]:
    """All heads of one layer."""
    statistics, valid = traces.statistics(layer), None if traces.is_unpadded else traces.is_token
    received = statistics["received"].amax(-1) / traces.lengths[:, None]
    return {name: masked_mean(statistics[name], valid) for name in ("entropy", "first", "top", "distance")} | {
        "received": received
    }


HEAD_STATISTICS = Analysis(
    name="head_statistics",
    question="Where does each head look, how sharply and how far?",
    ask=head_statistics,
    needs="trace",
    corpus=3,
    batch=batch,
    fields={
        "entropy": Field(
            ("layer", "head"),
            "entropy of the weights of a query, mean over queries: 0 where it looks at one token",
            "nats",
        ),
        "first": Field(("layer", "head"), "weight on the first token, mean over queries: the usual sink"),
        "top": Field(("layer", "head"), "the largest weight of a query, mean over queries"),
        "distance": Field(("layer", "head"), "Σ_j α_ij |i − j|, mean over queries: how far it looks", "tokens"),
        "received": Field(("layer", "head"), "share of all attention that the most looked-at token gets"),
    },
)
