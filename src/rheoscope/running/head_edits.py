"""Edits of heads, or of whole layers, looked at once before a model runs with them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.running.half_precision import rounded_once
from rheoscope.running.stream import Description, looking
from rheoscope.running.thread_hooks import Ask
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads, of_head
from rheoscope.space.model import Edit, Edits, Hook, Hooks, LayerEdit, Rewrite
from rheoscope.space.safe_arithmetic import exact


@dataclass(frozen=True, eq=False)
class Changes:
    """What changes in one run of a model: edits of heads and layers, hooks by label, and what looks at points for edits."""

    edits: Edits
    hooks: dict[str, Hook]
    looks: list[Ask]


def for_one_run(description: Description, edit: Edits, hooks: Hooks) -> Changes:
    """A Rewrite as an edit of a layer, a look at what the layer reads, and a hook where its attention has written.

    They hand to each other, by the number of the layer, what belongs to this run and to no other.
    """
    edits: dict[Any, Any] = dict(edit)
    asked, looks = {str(step): hook for step, hook in hooks.items()}, []
    read: dict[int, Tensor] = {}
    added: dict[int, Tensor] = {}
    for layer, change in edits.items():
        if isinstance(change, Rewrite) and 0 <= layer < len(description.layers):
            edits[layer] = partial(_rewritten, layer, change, read, added)
            looks.append(looking(description.read_by(layer), partial(read.__setitem__, layer)))
            label = str(description.written_by(layer).step)
            asked[label] = partial(_adding, layer, added, asked.get(label))
    return Changes(edits, asked, looks)


def _rewritten(
    layer: int,
    rewrite: Rewrite,
    read: dict[int, Tensor],
    added: dict[int, Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mechanism: Mechanism,
    out: Tensor,
) -> Tensor:
    x = exact(read.pop(layer)).reshape(len(q), q.shape[-2], -1)
    new, beside = rewrite.change(x, q, k, v, mechanism, out)
    if beside is not None:
        added[layer] = beside
    return new


def _adding(layer: int, added: dict[int, Tensor], then: Hook | None, x: Tensor) -> Tensor:
    """The points with what attention wrote beside its heads; a hook of the same step sees it."""
    if layer in added:
        x = x + added.pop(layer).to(x).reshape(x.shape)
    return x if then is None else then(x)


def by_layer(blocks: Sequence[Heads], edit: Edits) -> dict[int, LayerEdit]:
    """Layer → its edit, which gives outputs of heads or is refused; a head or a layer that is not there is refused.

    Edits compute in float32 or better, whatever the model computes in.
    """
    whole: dict[int, LayerEdit] = {}
    single: dict[int, dict[int, Edit]] = {}
    change: Any
    for at, change in edit.items():
        layer, head = (at, 0) if isinstance(at, int) else at
        if not 0 <= layer < len(blocks) or not 0 <= head < blocks[layer].count:
            raise RheoscopeError(
                f"there is no {'layer' if isinstance(at, int) else 'head'} {at}; this model has layers 0 to "
                f"{len(blocks) - 1} with heads 0 to {blocks[0].count - 1}"
            )
        if isinstance(at, int):
            whole[layer] = partial(_asked_of_layer, layer, change)
        else:
            single.setdefault(layer, {})[head] = partial(_asked, layer, head, change)
    edits = whole | {layer: partial(_one_by_one, heads) for layer, heads in single.items()}
    return {layer: rounded_once(change) for layer, change in edits.items()}


def _one_by_one(edits: dict[int, Edit], q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
    """The outputs of a layer with some heads replaced, each given its own queries, keys, values and mechanism."""
    out, size = out.clone(), q.shape[1] // k.shape[1]
    for head, change in edits.items():
        its, group = slice(head, head + 1), slice(head // size, head // size + 1)
        out[:, its] = change(q[:, its], k[:, group], v[:, group], of_head(mechanism, head))
    return out


def _asked(layer: int, head: int, change: Edit, q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
    """What the edit says, which must be an output of the head."""
    return _output(
        change(q, k, v, mechanism),
        (*q.shape[:-1], v.shape[-1]),
        f"the edit of head ({layer}, {head}) must return its output",
        "`return mechanism.attend(q, k, v)` changes nothing",
    )


def _asked_of_layer(
    layer: int, change: LayerEdit, q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor
) -> Tensor:
    """What the edit says, which must be outputs of all heads of the layer."""
    new = change(q, k, v, mechanism, out)
    return _output(
        new, tuple(out.shape), f"the edit of layer {layer} must return its outputs", "`return out` changes nothing"
    ).to(out.dtype)


def _output(out: object, wanted: tuple[int, ...], what: str, same: str) -> Tensor:
    if isinstance(out, Tensor) and out.shape == wanted:
        return out
    came = f"a tensor {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
    raise RheoscopeError(f"{what} {wanted}, got {came}; {same}")
