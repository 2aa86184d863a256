"""The setting `heads`: parsing, checks against the model, and labels."""

from collections.abc import Sequence
from numbers import Integral
from typing import Annotated, Any

from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.settings import Bounds
from rheoscope.space.view import View

HeadSelection = Sequence[Any] | Annotated[int, Bounds(0, 10_000)] | None
"""[(layer, head), …], or None for all heads. A number is accepted by the type only to be refused with advice."""
HeadsByLayer = dict[int, list[int]]
"""Layer → indices of its heads."""


def select_heads(view: View, heads: HeadSelection) -> HeadsByLayer:
    """The selected heads of each layer, from a list of (layer, head) or None for all.

    >>> import rheoscope as rs
    >>> select_heads(rs.load().view, [(2, 1), (0, 3), (2, 0)])
    {0: [3], 2: [0, 1]}
    """
    if heads is None:
        return {layer: list(range(block.n_heads)) for layer, block in enumerate(view.layer_heads)}
    pairs = [] if isinstance(heads, int | str) else [(int(pair[0]), int(pair[1])) for pair in heads if _is_pair(pair)]
    if isinstance(heads, int | str) or len(pairs) < len(heads):
        advice = use(heads=[(5, 0), (5, 1)])
        if isinstance(heads, int):
            advice = Advice(f"heads=model.view.head_indices({heads})", f"--heads L{heads}")
        raise RheoscopeError(Message("heads must be a list of (layer, head), got {received!r}", received=heads), advice)
    if not pairs:
        raise RheoscopeError(Message("heads is empty, expected at least one (layer, head)"), use(heads=[(5, 1)]))
    heads_by_layer: HeadsByLayer = {}
    for layer, head in pairs:
        view.heads_of(layer, head)
        heads_by_layer.setdefault(layer, []).append(head)
    return {layer: sorted(set(heads_by_layer[layer])) for layer in sorted(heads_by_layer)}


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(index, Integral) for index in value)


def format_heads(heads_by_layer: HeadsByLayer) -> str:
    """The labels of the heads, separated by spaces.

    >>> format_heads({0: [3], 2: [0, 1]})
    'L0.H3 L2.H0 L2.H1'
    """
    return " ".join(f"L{layer}.H{head}" for layer, head_indices in heads_by_layer.items() for head in head_indices)
