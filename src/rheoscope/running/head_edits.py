"""Edits of heads and whole layers, checked before a model runs with them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.running.half_precision import edit_in_float32
from rheoscope.running.stream import ModelDescription, describe_value, observe_tap
from rheoscope.running.thread_hooks import ModuleHook
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads, single_head_mechanism
from rheoscope.space.model import Edit, Edits, Hook, Hooks, LayerEdit, Rewrite
from rheoscope.space.safe_arithmetic import at_least_float32


@dataclass(frozen=True, eq=False)
class RunEdits:
    """The edits of one run: edits of heads and layers, hooks by step label, and observers of the points that edits need."""

    edits: Edits
    hooks: dict[str, Hook]
    observers: list[ModuleHook]


def prepare_run_edits(description: ModelDescription, edit: Edits, hooks: Hooks) -> RunEdits:
    """Split every Rewrite into a layer edit, an observer of the layer's input and a hook after its attention.

    These three share dictionaries by layer, which belong to this run only.
    """
    edits: dict[Any, Any] = dict(edit)
    hooks_by_label, observers = {str(step): hook for step, hook in hooks.items()}, []
    layer_inputs: dict[int, Tensor] = {}
    extra_writes: dict[int, Tensor] = {}
    for layer, layer_edit in edits.items():
        if isinstance(layer_edit, Rewrite) and 0 <= layer < len(description.layer_taps):
            edits[layer] = partial(_apply_rewrite, layer, layer_edit, layer_inputs, extra_writes)
            observers.append(observe_tap(description.input_tap(layer), partial(layer_inputs.__setitem__, layer)))
            label = str(description.output_tap(layer).step)
            hooks_by_label[label] = partial(_add_extra_write, layer, extra_writes, hooks_by_label.get(label))
    return RunEdits(edits, hooks_by_label, observers)


def _apply_rewrite(
    layer: int,
    rewrite: Rewrite,
    layer_inputs: dict[int, Tensor],
    extra_writes: dict[int, Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mechanism: Mechanism,
    out: Tensor,
) -> Tensor:
    x = at_least_float32(layer_inputs.pop(layer)).reshape(len(q), q.shape[-2], -1)
    new_output, extra_write = rewrite.edit(x, q, k, v, mechanism, out)
    if extra_write is not None:
        extra_writes[layer] = extra_write
    return new_output


def _add_extra_write(layer: int, extra_writes: dict[int, Tensor], next_hook: Hook | None, x: Tensor) -> Tensor:
    """Add what a Rewrite writes outside the heads; a hook at the same step sees the sum."""
    if layer in extra_writes:
        x = x + extra_writes.pop(layer).to(x).reshape(x.shape)
    return x if next_hook is None else next_hook(x)


def edits_by_layer(blocks: Sequence[Heads], edit: Edits) -> dict[int, LayerEdit]:
    """Layer → its edit, with checked outputs; raise for a head or a layer that does not exist.

    Edits compute in float32 or better in every model.
    """
    layer_edits: dict[int, LayerEdit] = {}
    head_edits: dict[int, dict[int, Edit]] = {}
    edit_function: Any
    for key, edit_function in edit.items():
        layer, head = (key, 0) if isinstance(key, int) else key
        if not 0 <= layer < len(blocks) or not 0 <= head < blocks[layer].n_heads:
            raise RheoscopeError(
                Message(
                    "there is no layer {layer}; this model has layers 0 to {last}",
                    layer=layer,
                    last=len(blocks) - 1,
                )
                if isinstance(key, int)
                else Message(
                    "there is no head ({layer}, {head}); this model has layers 0 to {last_layer} with heads 0 to {last_head}",
                    layer=layer,
                    head=head,
                    last_layer=len(blocks) - 1,
                    last_head=blocks[0].n_heads - 1,
                )
            )
        if isinstance(key, int):
            layer_edits[layer] = partial(_run_layer_edit, layer, edit_function)
        else:
            head_edits.setdefault(layer, {})[head] = partial(_run_head_edit, layer, head, edit_function)
    merged = layer_edits | {layer: partial(_edit_heads, edits_in_layer) for layer, edits_in_layer in head_edits.items()}
    return {layer: edit_in_float32(edit_function) for layer, edit_function in merged.items()}


def _edit_heads(edits: dict[int, Edit], q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
    """The outputs of a layer with edited heads; each edit gets the queries, keys, values and mechanism of its head."""
    out, group_size = out.clone(), q.shape[1] // k.shape[1]
    for head, head_edit in edits.items():
        head_slice, group_slice = slice(head, head + 1), slice(head // group_size, head // group_size + 1)
        out[:, head_slice] = head_edit(
            q[:, head_slice], k[:, group_slice], v[:, group_slice], single_head_mechanism(mechanism, head)
        )
    return out


def _run_head_edit(
    layer: int, head: int, head_edit: Edit, q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism
) -> Tensor:
    """Run an edit and check that it returns an output of the head."""
    return _check_output(
        head_edit(q, k, v, mechanism),
        (*q.shape[:-1], v.shape[-1]),
        Message("head ({layer}, {head})", layer=layer, head=head),
        Advice("return mechanism.attend(q, k, v)"),
    )


def _run_layer_edit(
    layer: int, layer_edit: LayerEdit, q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor
) -> Tensor:
    """Run an edit and check that it returns outputs of all heads of the layer."""
    new_output = layer_edit(q, k, v, mechanism, out)
    return _check_output(new_output, tuple(out.shape), Message("layer {layer}", layer=layer), Advice("return out")).to(
        out.dtype
    )


def _check_output(out: object, shape: tuple[int, ...], edited_part: str, advice: Advice) -> Tensor:
    if isinstance(out, Tensor) and out.shape == shape:
        return out
    raise RheoscopeError(
        Message(
            "the edit of {part} must return a tensor of shape {shape}, got {received}",
            part=edited_part,
            shape=str(shape),
            received=describe_value(out),
        ),
        advice,
    )
