"""Towers that read the patches of several images in one sequence (Qwen-VL): an image of pixels as packed patches, and back.

A row of the sequence is a patch, in blocks of patches that the tower merges into one. An image of a single frame is repeated to the
frames of a patch.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

GRID_INPUT, IMAGE_GRID = "grid_thw", "image_grid_thw"
"""The frames, rows and columns of patches of every image: as a tower reads them, and as an image processor returns them."""
PATCHES_PER_SIDE, SEGMENTS_PER_SIDE = 16, 2
"""An image has at least as many rows of patches, and of windows."""
DEFAULT_CHANNELS = 3


def is_packed(network: Any) -> bool:
    """Whether a network reads the patches of images in one sequence, with the grid of every image."""
    parameters = inspect.signature(network.forward).parameters
    return GRID_INPUT in parameters and "input_ids" not in parameters


def merge_size(config: Any) -> int:
    """How many rows and columns of patches a tower merges into one."""
    return int(getattr(config, "spatial_merge_size", None) or 1)


def packed_size(network: Any, sizes: set[int]) -> tuple[int, int, int]:
    """The channels, the height and the width of an image whose number of patches is no other size of the network.

    A tower reads images of any size, but its rotations and windows are read off an image of this one.
    """
    config = network.config
    patch, merge = int(config.patch_size), merge_size(config)
    window = int(getattr(config, "window_size", None) or 0) // (patch * merge)
    n_rows = merge * max(-(-PATCHES_PER_SIDE // merge), SEGMENTS_PER_SIDE * window)
    n_columns = next(n for n in range(n_rows, n_rows + merge * (len(sizes) + 1), merge) if n * n_rows not in sizes)
    return _channels(config), n_rows * patch, n_columns * patch


def patch_axes(config: Any) -> tuple[int, int, int, int]:
    """The channels, frames, height and width of one patch."""
    return _channels(config), _frames(config), int(config.patch_size), int(config.patch_size)


def pack_patches(network: Any, pixels: Float[Tensor, "b c h w"]) -> dict[str, Tensor]:
    """The arguments of a tower for images of one size."""
    patch, merge = int(network.config.patch_size), merge_size(network.config)
    n_rows, n_columns = pixels.shape[-2] // patch, pixels.shape[-1] // patch
    if n_rows % merge or n_columns % merge or pixels.shape[-2:] != (n_rows * patch, n_columns * patch):
        raise RheoscopeError(
            Message(
                "{network} reads images whose height and width are multiples of {size}, got {shape}",
                network=type(network).__name__,
                size=patch * merge,
                shape=str(tuple(pixels.shape[-2:])),
            )
        )
    blocks = pixels.unflatten(3, (-1, merge, patch)).unflatten(2, (-1, merge, patch))  # b c R m p C m p
    patches = blocks.permute(0, 2, 5, 3, 6, 1, 4, 7)[:, :, :, :, :, :, None]  # b R C m m c 1 p p
    rows = patches.expand(*[-1] * 6, _frames(network.config), -1, -1).flatten(5).flatten(0, 4)
    grid = torch.tensor([[1, n_rows, n_columns]], device=pixels.device).repeat(len(pixels), 1)
    return {_patch_input(network): rows, GRID_INPUT: grid}


def unpack_patches(network: Any, inputs: Mapping[str, Tensor]) -> Float[Tensor, "c h w"]:
    """The pixels of one image, from what an image processor returns."""
    grid = inputs[IMAGE_GRID]
    if len(grid) != 1 or int(grid[0, 0]) != 1:
        raise RheoscopeError(
            Message("the grid of patches is {grid}, expected one image of one frame", grid=grid.tolist())
        )
    config, (_, n_rows, n_columns) = network.config, grid[0].tolist()
    patch, merge = int(config.patch_size), merge_size(config)
    blocks = inputs["pixel_values"].reshape(
        n_rows // merge, n_columns // merge, merge, merge, _channels(config), _frames(config), patch, patch
    )[:, :, :, :, :, 0]  # R C m m c p p
    return blocks.permute(4, 0, 2, 5, 1, 3, 6).reshape(_channels(config), n_rows * patch, n_columns * patch)


def _patch_input(network: Any) -> str:
    return next(iter(inspect.signature(network.forward).parameters))


def _frames(config: Any) -> int:
    return int(getattr(config, "temporal_patch_size", None) or 1)


def _channels(config: Any) -> int:
    names = ("in_channels", "num_channels", "in_chans")
    return int(next((x for name in names if (x := getattr(config, name, None))), DEFAULT_CHANNELS))
