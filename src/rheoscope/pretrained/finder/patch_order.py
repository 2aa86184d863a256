"""The order of packed patches, which a tower shows on its tape: the rows and columns that it counts, and the axes of a patch."""

from typing import Any

import torch
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.tape import Tape
from rheoscope.pretrained.packed_patches import merge_size, pack_patches, packed_size, patch_axes
from rheoscope.shapes import RheoscopeError

VIEWS = frozenset({"view", "_unsafe_view", "reshape"})


def check_patch_order(network: Any, tape: Tape, sizes: set[int]) -> None:
    """Raise unless a tower counts its patches, and unfolds each of them, as `pack_patches` orders them.

    M and F would be exact in any order, but the places of patches in the image would not be.
    """
    axes, places = patch_axes(network.config), block_places(network, tape.n_tokens, sizes)
    has_axes = any(
        tuple(tape.template(v).shape[-len(end) :]) == end
        for x in tape.operations
        if x.name in VIEWS
        for v in x.results
        for end in (axes, (axes[0], *axes[2:]))[: 1 if axes[1] > 1 else 2]
    )
    merge = merge_size(network.config)
    if not has_axes or (merge > 1 and not any(torch.equal(x, places) for x in _counted_places(tape))):
        raise RheoscopeError(
            Message(
                "{network} does not show the order of its packed patches, expected rows of {axes} numbers in blocks of {merge} × {merge} "
                "patches",
                network=type(network).__name__,
                axes=" × ".join(map(str, axes)),
                merge=merge,
            )
        )


def block_places(network: Any, n_patches: int, sizes: set[int]) -> Tensor:
    """The row and the column of every packed patch, from an image whose pixels are its rows in one channel and its columns in another."""
    n_channels, _, width = packed_size(network, sizes)
    patch = int(network.config.patch_size)
    n_rows, n_columns = n_patches // (width // patch), width // patch
    rows, columns = torch.meshgrid(torch.arange(n_rows).float(), torch.arange(n_columns).float(), indexing="ij")
    image = torch.stack([rows, *[columns] * (n_channels - 1)]).repeat_interleave(patch, 1).repeat_interleave(patch, 2)
    packed = next(iter(pack_patches(network, image[None]).values())).unflatten(1, (n_channels, -1))
    return packed[:, :2, 0].long()


def _counted_places(tape: Tape) -> list[Tensor]:
    """The last two columns of all tensors with two or three whole numbers for every patch."""
    values = [v for x in tape.operations for v in x.results]
    shapes = {(tape.n_tokens, 2), (tape.n_tokens, 3)}
    counted = [
        v for v in values if tuple(tape.template(v).shape) in shapes and not tape.template(v).is_floating_point()
    ]
    return [tape.tensors[v][:, -2:].cpu() for v in counted]
