"""Compute on the device of a block: points are sent to it, and what was computed comes back. No matrix of the block moves."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from rheoscope.attention.parameters import with_fields
from rheoscope.running.stored_tensor import RemoteTensor, StoredTensor
from rheoscope.space.head import Heads

P = ParamSpec("P")
Result = TypeVar("Result")
MATRIX_FIELDS = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O")
NORM_FIELDS = ("norm", "q_norm", "k_norm", "v_norm", "output_norm", "heads_norm")


def on_block(function: Callable[P, Result]) -> Callable[P, Result]:
    """The same function, computed on the device of the block whose heads are among its arguments, and of a layer's input.

    All other arguments are sent there, and tensors of the result come back. Heads of the device of the points change nothing.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        heads = next(filter(None, map(_remote_heads, (*args, *kwargs.values()))), None)
        if heads is None:
            return function(*args, **kwargs)
        home, here = home_of(heads), heads.W_O.device
        there = home.W_O.device
        sent_args = [_sent(x, there, heads, home) for x in args]
        sent_kwargs = {name: _sent(x, there, heads, home) for name, x in kwargs.items()}
        return sent(function(*sent_args, **sent_kwargs), here)

    return call


class RemoteHeads(Heads):
    """Heads whose block is on another device than the points. They compute there."""

    qkv = on_block(Heads.qkv)
    scores = on_block(Heads.scores)
    weights = on_block(Heads.weights)
    all_weights = on_block(Heads.all_weights)
    outputs = on_block(Heads.outputs)
    apply_gate = on_block(Heads.apply_gate)
    attention_update = on_block(Heads.attention_update)
    statistics = on_block(Heads.statistics)
    displacements = on_block(Heads.displacements)
    bias = on_block(Heads.bias)
    displacements_of = on_block(Heads.displacements_of)


def _remote_heads(value: Any) -> RemoteHeads | None:
    """The remote heads that a value is, or has as the input of a layer; None if a matrix of theirs was replaced."""
    heads = value if isinstance(value, Heads) else getattr(value, "heads", None)
    if not isinstance(heads, RemoteHeads):
        return None
    return heads if all(map(_is_remote, _matrices(heads).values())) else None


def _is_remote(x: Tensor) -> bool:
    return isinstance(x, StoredTensor) and isinstance(x.source, RemoteTensor)


def _matrices(heads: Heads) -> dict[str, Tensor]:
    return {name: x for name in MATRIX_FIELDS if (x := getattr(heads, name)) is not None}


def home_of(heads: RemoteHeads) -> Heads:
    """The same heads on the device of their block, with the matrices that are there."""
    matrices = {name: x.source.x for name, x in _matrices(heads).items()}  # type: ignore[attr-defined]
    device = matrices["W_O"].device
    parts = {name: sent(getattr(heads, name), device) for name in (*NORM_FIELDS, "mechanism")}
    values = {field.name: getattr(heads, field.name) for field in fields(heads)}
    return Heads(**values | matrices | parts)


def sent(value: Any, device: torch.device) -> Any:
    """A value with all its tensors on a device: a tensor, a list, a tuple, a mapping, or a frozen dataclass of these.

    >>> sent({"x": [torch.ones(1)]}, torch.device("meta"))["x"][0].device
    device(type='meta')
    """
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: sent(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(sent(item, device) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(sent(item, device) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        changes = {name: new for name, part in parts.items() if (new := sent(part, device)) is not part}
        return with_fields(value, **changes) if changes else value
    return value


def _sent(value: Any, device: torch.device, heads: RemoteHeads, home: Heads) -> Any:
    """The same for an argument: remote heads, and those of a layer's input, become the heads at home."""
    if value is heads:
        return home
    if getattr(value, "heads", None) is heads:
        parts = {field.name: getattr(value, field.name) for field in fields(value) if field.name != "heads"}
        return replace(value, heads=home, **sent(parts, device))
    return sent(value, device)
