"""Head edits in networks with attention of their own: the input of the output matrix is replaced by edited heads."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rheoscope.attention.mask import Padding
from rheoscope.attention.position import NoPosition
from rheoscope.running.stream import ModelDescription, observe_tap
from rheoscope.running.thread_hooks import ModuleHook, apply_module_hooks, on_turn
from rheoscope.space.head import Heads
from rheoscope.space.model import LayerEdit
from rheoscope.space.safe_arithmetic import at_least_float32


@contextmanager
def edit_outputs(network: nn.Module, description: ModelDescription, edits: Mapping[int, LayerEdit]) -> Iterator[None]:
    """Inside, and in this thread only, the heads of some layers are computed from the points and edited."""
    inputs: dict[int, Tensor] = {}
    is_token: list[Tensor | None] = [None]
    hooks = [ModuleHook(network, "in", partial(_keep_padding, is_token))]
    for layer, edit in edits.items():
        hooks.append(observe_tap(description.input_tap(layer), partial(inputs.__setitem__, layer)))
        replace_outputs = partial(
            _edited_outputs, description.layer_heads[layer], edit, partial(inputs.pop, layer), is_token
        )
        hook, last_tap = (
            ModuleHook(description.output_projections[layer], "in", replace_outputs),
            description.layer_taps[layer][-1],
        )
        hooks.append(on_turn(hook, last_tap.turn, last_tap.n_turns))
    with apply_module_hooks(hooks if edits else []):
        yield


def _keep_padding(is_token: list[Tensor | None], args: Any, kwargs: dict[str, Any]) -> None:
    """Keep which tokens of a batch are no padding."""
    mask = kwargs.get("attention_mask")
    is_token[0] = None if mask is None or bool(mask.all()) else mask.bool()


def _edited_outputs(
    heads: Heads,
    edit: LayerEdit,
    pop_points: Callable[[], Tensor],
    is_token: list[Tensor | None],
    args: Any,
    kwargs: dict[str, Any],
) -> tuple[Any, dict[str, Any]]:
    """The arguments of the output matrix with edited heads."""
    x = at_least_float32(pop_points())
    x = x if x.ndim == 3 else x[None]
    mechanism, (q, k, v) = heads.mechanism, (at_least_float32(y) for y in heads.qkv(x))
    if is_token[0] is not None:
        mechanism = mechanism.with_mask(Padding(is_token[0]))
    out = mechanism.attend(q, k, v)
    if mechanism.position.changes_tokens:
        positions = torch.arange(x.shape[-2], device=x.device)
        q, k = (mechanism.position.encode(y, positions) for y in (q, k))
        mechanism = replace(mechanism, position=NoPosition())
    edited = edit(q, k, v, mechanism, out)
    rows, *others = args
    new_rows = (
        heads.apply_gate(edited, x).transpose(1, 2).flatten(-2)
        if heads.heads_norm is None
        else heads.heads_norm.apply(edited)
    )
    return (new_rows.reshape(rows.shape).to(rows.dtype), *others), kwargs
