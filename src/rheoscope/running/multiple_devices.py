"""A model on several devices: its heads as operators stand where its points stand.

The network stays where it lies, layer by layer, and whoever spread it moves what passes from one device to the next. Analyses read the
points, which stand with the embedding: so the matrices of the heads are copied there, and a module of the model that is called from
outside is sent what it reads and gives its answer back.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rheoscope.attention.memory import check_room
from rheoscope.attention.parameters import tensors, with_tensors
from rheoscope.running.stream import Description
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads, Norm, Projected

MATRICES = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O")


def devices(description: Description) -> set[torch.device]:
    """Where the layers and the embedding are."""
    return {description.embed.weight.device, *(heads.W_O.device for heads in description.blocks)}


@torch.no_grad()
def on_one_device(description: Description) -> Description:
    """The same description with all operators where the embedding is; one that is there already is itself."""
    if len(devices(description)) == 1:
        return description
    if description.crossing:
        raise RheoscopeError("an encoder-decoder is read on one device; type device='cuda' or device='cpu'")
    place = description.embed.weight.device
    moved = [x for heads in description.blocks if heads.W_O.device != place for x in _matrices(heads).values()]
    check_room("what the heads compare and carry", sum(x.nbytes for x in moved), place, "a larger GPU, or device='cpu'")
    return replace(
        description,
        blocks=tuple(_heads(heads, place) for heads in description.blocks),
        mlps=tuple(
            there(mlp, heads.W_O.device) for mlp, heads in zip(description.mlps, description.blocks, strict=True)
        ),
        final_norm=_norm(description.final_norm, place, place),
        into=_to(description.into, place),
        out_of=_to(description.out_of, place),
    )


def there(own: Callable[[Tensor], Tensor], where: torch.device) -> Callable[[Tensor], Tensor]:
    """A module of another device as those here call it.

    >>> there(torch.nn.Linear(2, 3), torch.device("cpu"))(torch.ones(1, 2)).shape
    torch.Size([1, 3])
    """
    return lambda x: own(x.to(where)).to(x.device)


def _matrices(heads: Heads) -> dict[str, Tensor]:
    return {name: x for name in MATRICES if (x := getattr(heads, name)) is not None}


def _heads(heads: Heads, place: torch.device) -> Heads:
    where = heads.W_O.device
    if where == place:
        return heads

    def project(u: Tensor) -> Projected:
        q, k, v = heads.project(u.to(where))
        return q.to(u.device), k.to(u.device), v.to(u.device)

    own = {name: getattr(heads, name) for name in ("norm", "q_norm", "k_norm", "after")}
    norms: dict[str, Any] = {name: None if norm is None else _norm(norm, where, place) for name, norm in own.items()}
    matrices: dict[str, Any] = {name: x.to(place) for name, x in _matrices(heads).items()}
    tables = {at: x.to(place) for at, x in tensors(heads.mechanism).items()}
    return replace(
        heads,
        mechanism=with_tensors(heads.mechanism, tables),
        project=project,
        gate=None if heads.gate is None else there(heads.gate, where),
        **matrices,
        **norms,
    )


def _norm(norm: Norm, where: torch.device, place: torch.device) -> Norm:
    if norm.eps is None:
        return norm
    where = where if norm.gain is None else norm.gain.device
    return replace(norm, own=there(norm.own, where), gain=_to(norm.gain, place), bias=_to(norm.bias, place))


def _to(x: Tensor | None, place: torch.device) -> Tensor | None:
    return None if x is None else x.to(place)
