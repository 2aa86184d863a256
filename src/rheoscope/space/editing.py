"""Edits of heads, looked at once before a model runs with them."""

from collections.abc import Mapping, Sequence
from functools import partial

from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads
from rheoscope.space.model import Edit

Edits = dict[int, dict[int, Edit]]
"""Layer → head → its edit, which gives an output of the head or is refused."""


def by_layer(blocks: Sequence[Heads], edit: Mapping[tuple[int, int], Edit]) -> Edits:
    """The edits layer by layer; a head that is not there is refused."""
    edits: Edits = {}
    for (layer, head), change in edit.items():
        if not 0 <= layer < len(blocks) or not 0 <= head < blocks[layer].count:
            raise RheoscopeError(
                f"there is no head ({layer}, {head}); this model has layers 0 to {len(blocks) - 1} "
                f"with heads 0 to {blocks[0].count - 1}"
            )
        edits.setdefault(layer, {})[head] = partial(_asked, layer, head, change)
    return edits


def _asked(layer: int, head: int, change: Edit, q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
    """What the edit says, which must be an output of the head."""
    out, wanted = change(q, k, v, mechanism), (*q.shape[:-1], v.shape[-1])
    if not isinstance(out, Tensor) or out.shape != wanted:
        came = f"a tensor {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise RheoscopeError(
            f"the edit of head ({layer}, {head}) must return its output {wanted}, got {came}; "
            "`return mechanism.attend(q, k, v)` changes nothing"
        )
    return out
