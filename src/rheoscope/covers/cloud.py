"""What an analysis of the covers looks at: the cloud that each layer reads, massive tokens left out, and labelled results."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads
from rheoscope.space.share import exact
from rheoscope.space.trace import Trace
from rheoscope.space.view import View


@dataclass(frozen=True, eq=False)
class Read:
    """What one layer reads of a text: its heads, all points `x` (n, d) and, of the kept tokens, x̂ and their places."""

    layer: int
    heads: Heads
    x: Float[Tensor, "all d"]
    hat: Float[Tensor, "n d"]
    kept: Int[Tensor, " n"]


def layers(view: View, trace: Trace, keep_massive: bool = False, least: int = 1) -> Iterator[Read]:
    """Layer by layer what the heads of a View read of a text; fewer than `least` tokens are refused.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> next(layers(model.view, model.trace("The keys to the cabinet"))).hat.shape[-1]
    256
    """
    if (view.layers, view.width) != (trace.view.layers, trace.view.width):
        raise RheoscopeError(
            f"the View has {view.layers} layers of width {view.width}, the model of this Trace {trace.view.layers} of "
            f"{trace.view.width}; type the view of the model that made the Trace"
        )
    kept = tokens(trace, keep_massive, least)
    if not bool(torch.stack(trace.points.aminmax()).isfinite().all()):
        raise RheoscopeError("the points of this text hold NaN or infinity; type dtype='float32', or another text")
    for layer, heads in enumerate(view.blocks):
        x = trace.read_by(layer)
        yield Read(layer, heads, x, hat(heads, x)[kept], kept)


def tokens(trace: Trace, keep_massive: bool, least: int = 1) -> Int[Tensor, " n"]:
    """Places of the tokens that count."""
    return trace.kept(keep_massive, least).nonzero()[:, 0]


def hat(heads: Heads, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """x̂ in float32 or better: what the heads of a layer read, before the gain."""
    return heads.norm.hat(exact(x))


def provenance(trace: Trace, analysis: str, keep_massive: bool, **settings: Any) -> dict[str, Any]:
    """What every result on a text carries: settings, massive tokens, the model and the text."""
    told: dict[str, Any] = {"analysis": analysis, "space": "x̂", "massive": trace.massive()}
    return told | {"keep_massive": int(keep_massive)} | settings | trace.provenance
