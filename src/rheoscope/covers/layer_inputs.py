"""The inputs of each layer for analyses in `covers`: heads, points and included tokens.

For one text (`read_layers`), massive tokens are removed. For many texts (`read_batch_layers`), all tokens keep their
positions and a mask selects the included ones.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.running.progress import tick
from rheoscope.shapes import RheoscopeError
from rheoscope.space.cpu_cores import map_on_cores
from rheoscope.space.head import Heads
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class LayerInput:
    """The input of one layer on a text: its heads, all points `x`, and x̂ and positions of the included tokens."""

    layer: int
    heads: Heads
    x: Float[Tensor, "all d"]
    x_hat: Float[Tensor, "n d"]
    positions: Int[Tensor, " n"]


def read_layers(trace: Trace, keep_massive: bool = False, min_tokens: int = 1) -> Iterator[LayerInput]:
    """The input of every layer on a text. Raises if fewer than `min_tokens` tokens are included.

    >>> import rheoscope as rs
    >>> next(read_layers(rs.load().trace("The keys to the cabinet"))).x_hat.shape[-1]
    256
    """
    positions = _checked_positions(trace, keep_massive, min_tokens)
    for layer in range(trace.view.layers):
        tick(layer, trace.view.layers)
        yield read_layer(trace, layer, positions)


def map_layer_inputs(
    function: Callable[[LayerInput], Result], trace: Trace, keep_massive: bool = False, min_tokens: int = 1
) -> Iterator[Result]:
    """The results of `function` for the input of every layer, in order. On a CPU every core computes another layer.

    >>> import rheoscope as rs
    >>> list(map_layer_inputs(lambda layer_input: layer_input.layer, rs.load().trace("The keys to the cabinet")))
    [0, 1, 2, 3, 4, 5]
    """
    positions, view = _checked_positions(trace, keep_massive, min_tokens), trace.view

    @torch.no_grad()
    def apply(layer: int) -> Result:
        return function(read_layer(trace, layer, positions))

    layers = range(view.layers)
    on_cpu = trace.points.device.type == "cpu"
    results = map_on_cores(apply, layers, view.layers_at_once) if on_cpu else map(apply, layers)
    tick(0, view.layers)
    for layer, result in enumerate(results):
        tick(layer + 1, view.layers)
        yield result


def _checked_positions(trace: Trace, keep_massive: bool, min_tokens: int) -> Int[Tensor, " n"]:
    positions = included_positions(trace, keep_massive, min_tokens)
    if not bool(torch.stack(trace.points.aminmax()).isfinite().all()):
        raise RheoscopeError(Message("the points of this text hold NaN or infinity"), use(dtype="float32"))
    return positions


def read_layer(trace: Trace, layer: int, positions: Int[Tensor, " n"]) -> LayerInput:
    """The input of one layer on a text, with the tokens at these positions included."""
    heads, x = trace.view.heads_of(layer), trace.layer_input(layer)
    return LayerInput(layer, heads, x, heads.norm.normalise(at_least_float32(x))[positions], positions)


@dataclass(frozen=True, eq=False)
class BatchLayerInput:
    """The input of one layer on many texts: its heads, all points, x̂ (0 for excluded tokens) and the mask of included tokens."""

    layer: int
    heads: Heads
    x: Float[Tensor, "b n d"]
    x_hat: Float[Tensor, "b n d"]
    is_included: Bool[Tensor, "b n"]
    all_included: bool


def read_batch_layers(traces: Traces, is_included: Bool[Tensor, "b n"]) -> Iterator[BatchLayerInput]:
    """The input of every layer on many texts, with a mask of included tokens.

    >>> import rheoscope as rs
    >>> traces = rs.load().trace(["The keys to the cabinet", "A cat"])
    >>> next(read_batch_layers(traces, traces.is_token)).x_hat.shape[0]
    2
    """
    for layer in range(traces.view.layers):
        tick(layer, traces.view.layers)
        yield read_batch_layer(traces, layer, is_included)


def read_batch_layer(traces: Traces, layer: int, is_included: Bool[Tensor, "b n"]) -> BatchLayerInput:
    """The input of one layer on many texts, with a mask of included tokens."""
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
    """The positions of the included tokens."""
    return trace.valid_mask(keep_massive, min_tokens).nonzero()[:, 0]


def resolve_layer(view: View, layer: int, head: int = 0) -> int:
    """The index of a layer, where −1 is the last. Raises if the layer or its head does not exist.

    >>> import rheoscope as rs
    >>> resolve_layer(rs.load().view, -1)
    5
    """
    index = layer + view.layers if -view.layers <= layer < 0 else layer
    view.heads_of(index, head)
    return index


def check_control(trace: Trace, control: Trace) -> None:
    """Raise if a control has other tokens, or another number of layers or heads."""
    sizes = [
        (compared_trace.view.layers, compared_trace.view.heads, len(compared_trace))
        for compared_trace in (trace, control)
    ]
    if sizes[0] != sizes[1] or not torch.equal(trace.ids, control.ids):
        problem = (
            Message("the control must have the same tokens as the text, got other tokens")
            if sizes[0] == sizes[1]
            else Message(
                "the control must have (layers, heads, tokens) = {expected}, got {received}",
                expected=str(sizes[0]),
                received=str(sizes[1]),
            )
        )
        raise RheoscopeError(problem, Advice("control=rs.load(name, untrained=True).trace(text)"))


def describe_model(control: Trace) -> str:
    """The model of a control, for the attributes of a result."""
    return f"{control.facts['model']}, weights {control.facts['weights']}"


def provenance(trace: Trace, keep_massive: bool, **settings: Any) -> dict[str, Any]:
    """The attributes of every result on a text: settings, massive tokens, model and text."""
    attributes: dict[str, Any] = {"space": "x̂", "massive": trace.massive_tokens(), "keep_massive": int(keep_massive)}
    return attributes | settings | trace.provenance
