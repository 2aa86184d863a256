"""A model spread over several devices, with all its heads as operators on the device of the embedding.

The network stays spread layer by layer, and accelerate moves activations between devices. Analyses use the points, which are
on the device of the embedding. A module on another device gets its input sent, runs there, and returns its output to the
device of the input: norms, projections, gates and MLPs. The matrices of the heads stay there too. What an analysis computes of
one block runs there (block_device.py). An operation on the embedding's device that needs a matrix, such as a comparison of two
blocks, copies it for this operation alone, so no device holds more than its own blocks.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from rheoscope.attention.parameters import tensors_by_path, with_tensors
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.running.block_device import MATRIX_FIELDS, RemoteHeads, sent
from rheoscope.running.stored_tensor import sent_when_used
from rheoscope.running.stream import ModelDescription
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads
from rheoscope.space.model_parts import Norm, Projected


def devices_of(description: ModelDescription) -> set[torch.device]:
    """The devices of the layers and of the embedding."""
    return {description.embedding.weight.device, *(heads.W_O.device for heads in description.layer_heads)}


@torch.no_grad()
def on_one_device(description: ModelDescription) -> ModelDescription:
    """The same description with all operators on the device of the embedding."""
    if len(devices_of(description)) == 1:
        return description
    if description.cross_heads:
        raise RheoscopeError(
            Message("an encoder-decoder must be on one device, got {n} devices", n=len(devices_of(description))),
            use(device="cuda"),
        )
    device = description.embedding.weight.device
    return replace(
        description,
        layer_heads=tuple(_heads_on_device(heads, device) for heads in description.layer_heads),
        mlps=tuple(
            on_device(mlp, heads.W_O.device)
            for mlp, heads in zip(description.mlps, description.layer_heads, strict=True)
        ),
        final_norm=_norm_on_device(description.final_norm, device, device),
        embed_projection=_to_device_or_none(description.embed_projection, device),
        unembed_projection=_to_device_or_none(description.unembed_projection, device),
        prediction_head=None
        if description.prediction_head is None
        else on_device(description.prediction_head, description.layer_heads[-1].W_O.device),
    )


def on_device(module: Callable[[Tensor], Tensor], module_device: torch.device) -> Callable[[Tensor], Tensor]:
    """A module of another device, callable with tensors of any device.

    >>> on_device(torch.nn.Linear(2, 3), torch.device("cpu"))(torch.ones(1, 2)).shape
    torch.Size([1, 3])
    """
    return lambda x: module(x.to(module_device)).to(x.device)


def _matrices(heads: Heads) -> dict[str, Tensor]:
    return {name: x for name in MATRIX_FIELDS if (x := getattr(heads, name)) is not None}


def _heads_on_device(heads: Heads, device: torch.device) -> Heads:
    source_device = heads.W_O.device
    if source_device == device:
        return heads

    def project(u: Tensor) -> Projected:
        q, k, v = heads.project(u.to(source_device))
        return q.to(u.device), k.to(u.device), v.to(u.device)

    original_norms = {name: getattr(heads, name) for name in ("norm", "q_norm", "k_norm", "v_norm", "output_norm")}
    norms: dict[str, Any] = {
        name: None if norm is None else _norm_on_device(norm, source_device, device)
        for name, norm in original_norms.items()
    }
    matrices: dict[str, Any] = {name: sent_when_used(x, device) for name, x in _matrices(heads).items()}
    tables = {key: x.to(device) for key, x in tensors_by_path(heads.mechanism).items()}
    values = {field.name: getattr(heads, field.name) for field in fields(heads)}
    return RemoteHeads(
        **values
        | matrices
        | norms
        | {
            "mechanism": with_tensors(heads.mechanism, tables),
            "project": project,
            "gate": None if heads.gate is None else on_device(heads.gate, source_device),
            "heads_norm": sent(heads.heads_norm, device),
        }
    )


def _norm_on_device(norm: Norm, source_device: torch.device, device: torch.device) -> Norm:
    if norm.eps is None:
        return norm
    source_device = source_device if norm.gain is None else norm.gain.device
    return replace(
        norm,
        apply=on_device(norm.apply, source_device),
        gain=_to_device_or_none(norm.gain, device),
        bias=_to_device_or_none(norm.bias, device),
    )


def _to_device_or_none(x: Tensor | None, device: torch.device) -> Tensor | None:
    return None if x is None else x.to(device)
