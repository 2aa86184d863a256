"""Heads as a user asks for them, checked against the model: the one place where the setting `heads` is read."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from rheoscope.shapes import RheoscopeError
from rheoscope.space.view import View

Asked = Sequence[Any] | int | None
"""[(layer, head), …], or None for all heads; anything else is refused in one line."""
Chosen = dict[int, list[int]]
"""Layer → heads."""


def chosen_heads(view: View, heads: Asked) -> Chosen:
    """The heads asked for, layer by layer: a list of (layer, head), or None for all.

    >>> import rheoscope as rs
    >>> chosen_heads(rs.load().view, [(2, 1), (0, 3), (2, 0)])
    {0: [3], 2: [0, 1]}
    """
    if heads is None:
        return {layer: list(range(block.count)) for layer, block in enumerate(view.blocks)}
    pairs = [] if isinstance(heads, int | str) else [(int(one[0]), int(one[1])) for one in heads if _is_pair(one)]
    if isinstance(heads, int | str) or len(pairs) < len(heads):
        whole = heads if isinstance(heads, int) else 5
        raise RheoscopeError(
            f"heads is a list of (layer, head), got {heads!r}; type heads=[({whole}, 0), ({whole}, 1)], or "
            f"heads=model.view.heads_in({whole}) for a whole layer"
        )
    if not pairs:
        raise RheoscopeError("no head to change; type heads=[(5, 1)], or leave heads out for all of them")
    found: Chosen = {}
    for layer, head in pairs:
        view.heads_of(layer, head)
        found.setdefault(layer, []).append(head)
    return {layer: sorted(set(found[layer])) for layer in sorted(found)}


def _is_pair(one: Any) -> bool:
    return isinstance(one, tuple | list) and len(one) == 2 and all(isinstance(at, Integral) for at in one)


def names_of(chosen: Chosen) -> str:
    """Heads in words.

    >>> names_of({0: [3], 2: [0, 1]})
    'L0.H3 L2.H0 L2.H1'
    """
    return " ".join(f"L{layer}.H{head}" for layer, some in chosen.items() for head in some)
