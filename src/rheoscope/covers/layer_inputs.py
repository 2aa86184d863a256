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
from rheoscope.space.safe_arithmetic import exact
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View


@dataclass(frozen=True, eq=False)
class Read:
    """What one layer reads of a text: its heads, all points `x` (n, d) and, of the tokens that count, x̂ and their places."""

    layer: int
    heads: Heads
    x: Float[Tensor, "all d"]
    hat: Float[Tensor, "n d"]
    at: Int[Tensor, " n"]


def layers(trace: Trace, keep_massive: bool = False, least: int = 1) -> Iterator[Read]:
    """Layer by layer what the heads read of a text; fewer than `least` tokens are refused.

    >>> import rheoscope as rs
    >>> next(layers(rs.load().trace("The keys to the cabinet"))).hat.shape[-1]
    256
    """
    at = tokens(trace, keep_massive, least)
    if not bool(torch.stack(trace.points.aminmax()).isfinite().all()):
        raise RheoscopeError("the points of this text hold NaN or infinity; type dtype='float32', or another text")
    for layer in range(trace.view.layers):
        tick(layer, trace.view.layers)
        yield read(trace, layer, at)


def read(trace: Trace, layer: int, at: Int[Tensor, " n"]) -> Read:
    """What one layer reads of a text, with the tokens at these places as those that count."""
    heads, x = trace.view.heads_of(layer), trace.read_by(layer)
    return Read(layer, heads, x, heads.norm.hat(exact(x))[at], at)


@dataclass(frozen=True, eq=False)
class ReadMany:
    """What one layer reads of many texts: its heads, all points, x̂ of every token (0 where it does not count), and which count.

    `every` says that all of them do.
    """

    layer: int
    heads: Heads
    x: Float[Tensor, "b n d"]
    hat: Float[Tensor, "b n d"]
    kept: Bool[Tensor, "b n"]
    every: bool


def layers_of_many(traces: Traces, kept: Bool[Tensor, "b n"]) -> Iterator[ReadMany]:
    """Layer by layer what the heads read of many texts, with these tokens as those that count.

    >>> import rheoscope as rs
    >>> traces = rs.load().trace(["The keys to the cabinet", "A cat"])
    >>> next(layers_of_many(traces, traces.real)).hat.shape[0]
    2
    """
    for layer in range(traces.view.layers):
        tick(layer, traces.view.layers)
        yield read_many(traces, layer, kept)


def read_many(traces: Traces, layer: int, kept: Bool[Tensor, "b n"]) -> ReadMany:
    """What one layer reads of many texts, with these tokens as those that count."""
    heads, x = traces.view.heads_of(layer), traces.view.as_read(traces.read_by(layer))
    hat, every = heads.norm.hat(exact(x)), kept is traces.real and traces.unpadded
    return ReadMany(layer, heads, x, hat if every else torch.where(kept[..., None], hat, 0), kept, every)


def tokens(trace: Trace, keep_massive: bool, least: int = 1) -> Int[Tensor, " n"]:
    """Places of the tokens that count."""
    return trace.ordinary(keep_massive, least).nonzero()[:, 0]


def layer_from_end(view: View, layer: int, head: int = 0) -> int:
    """The number of a layer that may be counted from the end (−1 is the last); it must be there, and have the head.

    >>> import rheoscope as rs
    >>> layer_from_end(rs.load().view, -1)
    5
    """
    found = layer + view.layers if -view.layers <= layer < 0 else layer
    view.heads_of(found, head)
    return found


def check_control(trace: Trace, control: Trace) -> None:
    """Refuse a control that did not read the same tokens in as many layers and heads."""
    sizes = [(one.view.layers, one.view.heads, len(one)) for one in (trace, control)]
    if sizes[0] != sizes[1] or not torch.equal(trace.ids, control.ids):
        described = [f"{layers} layers of {heads} heads on {n} tokens" for layers, heads, n in sizes]
        raise RheoscopeError(
            f"a control is the same text in the same architecture: got {described[1]} beside {described[0]}"
            f"{', other tokens' if sizes[0] == sizes[1] else ''}; type control=rs.load(…, untrained=True).trace(text)"
        )


def named(control: Trace) -> str:
    """Which model a control is, for the attributes of a result."""
    return f"{control.facts['model']}, weights {control.facts['weights']}"


def provenance(trace: Trace, keep_massive: bool, **settings: Any) -> dict[str, Any]:
    """What every result on a text carries: settings, massive tokens, the model and the text."""
    attributes: dict[str, Any] = {"space": "x̂", "massive": trace.massive(), "keep_massive": int(keep_massive)}
    return attributes | settings | trace.provenance
