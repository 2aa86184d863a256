"""What an analysis of the covers looks at: the cloud that each layer reads, massive tokens left out.

Of one text (`layers`) those tokens are left out; of many (`layers_of_many`) all stay where they are, and `kept` says which count.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.running.progress import tick
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View


@dataclass(frozen=True, eq=False)
class LayerInput:
    """What one layer reads of a text: its heads, all points `x` (n, d) and, of the tokens that count, x̂ and their places."""

    layer: int
    heads: Heads
    x: Float[Tensor, "all d"]
    x_hat: Float[Tensor, "n d"]
    positions: Int[Tensor, " n"]


def read_layers(trace: Trace, keep_massive: bool = False, min_tokens: int = 1) -> Iterator[LayerInput]:
    """Layer by layer what the heads read of a text; fewer than `least` tokens are refused.

    >>> import rheoscope as rs
    >>> next(read_layers(rs.load().trace("The keys to the cabinet"))).x_hat.shape[-1]
    256
    """
    positions = included_positions(trace, keep_massive, min_tokens)
    if not bool(torch.stack(trace.points.aminmax()).isfinite().all()):
        raise RheoscopeError("the points of this text hold NaN or infinity; type dtype='float32', or another text")
    for layer in range(trace.view.layers):
        tick(layer, trace.view.layers)
        yield read_layer(trace, layer, positions)


def read_layer(trace: Trace, layer: int, positions: Int[Tensor, " n"]) -> LayerInput:
    """What one layer reads of a text, with the tokens at these places as those that count."""
    heads, x = trace.view.heads_of(layer), trace.layer_input(layer)
    return LayerInput(layer, heads, x, heads.norm.normalise(at_least_float32(x))[positions], positions)


@dataclass(frozen=True, eq=False)
class BatchLayerInput:
    """What one layer reads of many texts: its heads, all points, x̂ of every token (0 where it does not count), and which count.

    `every` says that all of them do.
    """

    layer: int
    heads: Heads
    x: Float[Tensor, "b n d"]
    x_hat: Float[Tensor, "b n d"]
    is_included: Bool[Tensor, "b n"]
    all_included: bool


def read_batch_layers(traces: Traces, is_included: Bool[Tensor, "b n"]) -> Iterator[BatchLayerInput]:
    """Layer by layer what the heads read of many texts, with these tokens as those that count.

    >>> import rheoscope as rs
    >>> traces = rs.load().trace(["The keys to the cabinet", "A cat"])
    >>> next(read_batch_layers(traces, traces.is_token)).x_hat.shape[0]
    2
    """
    for layer in range(traces.view.layers):
        tick(layer, traces.view.layers)
        yield read_batch_layer(traces, layer, is_included)


def read_batch_layer(traces: Traces, layer: int, is_included: Bool[Tensor, "b n"]) -> BatchLayerInput:
    """What one layer reads of many texts, with these tokens as those that count."""
    heads, x = traces.view.heads_of(layer), traces.view.to_model_precision(traces.layer_input(layer))
    x_hat, all_included = (
        heads.norm.normalise(at_least_float32(x)),
        is_included is traces.is_token and traces.is_unpadded,
    )
    return BatchLayerInput(
        layer,
        heads,
        x,
        x_hat if all_included else torch.where(is_included[..., None], x_hat, 0),
        is_included,
        all_included,
    )


def included_positions(trace: Trace, keep_massive: bool, min_tokens: int = 1) -> Int[Tensor, " n"]:
    """Places of the tokens that count."""
    return trace.valid_mask(keep_massive, min_tokens).nonzero()[:, 0]


def resolve_layer(view: View, layer: int, head: int = 0) -> int:
    """The number of a layer that may be counted from the end (−1 is the last); it must be there, and have the head.

    >>> import rheoscope as rs
    >>> resolve_layer(rs.load().view, -1)
    5
    """
    index = layer + view.layers if -view.layers <= layer < 0 else layer
    view.heads_of(index, head)
    return index


def check_control(trace: Trace, control: Trace) -> None:
    """Refuse a control that did not read the same tokens in as many layers and heads."""
    sizes = [
        (compared_trace.view.layers, compared_trace.view.heads, len(compared_trace))
        for compared_trace in (trace, control)
    ]
    if sizes[0] != sizes[1] or not torch.equal(trace.ids, control.ids):
        descriptions = [f"{layers} layers of {heads} heads on {n} tokens" for layers, heads, n in sizes]
        raise RheoscopeError(
            f"a control is the same text in the same architecture: got {descriptions[1]} beside {descriptions[0]}"
            f"{', other tokens' if sizes[0] == sizes[1] else ''}; type control=rs.load(…, untrained=True).trace(text)"
        )


def describe_model(control: Trace) -> str:
    """Which model a control is, for the attributes of a result."""
    return f"{control.facts['model']}, weights {control.facts['weights']}"


def provenance(trace: Trace, keep_massive: bool, **settings: Any) -> dict[str, Any]:
    """What every result on a text carries: settings, massive tokens, the model and the text."""
    attributes: dict[str, Any] = {"space": "x̂", "massive": trace.massive_tokens(), "keep_massive": int(keep_massive)}
    return attributes | settings | trace.provenance
