"""The tile sizes of every attention kernel, fastest first, as measured on an H200.

A kernel runs with the first tiles that fit the machine. A row of the table is `TileConfig(BLOCK_M, BLOCK_N, num_warps,
num_stages)`: queries in a tile, keys in a tile, warps of a program and stages of the software pipeline.
"""

from typing import NamedTuple

import torch
from torch import Tensor

ROWS_PER_PROGRAM = 64
"""Rows of a program in the kernels that process each row on its own."""
CHUNK = 64
"""Tokens of a chunk in linear attention and in running means."""
OWNED_TOKENS = 128
"""Tokens that a program of the additive kernels owns, one for each of its threads."""


class TileConfig(NamedTuple):
    """Tile sizes of a kernel, its number of warps and the stages of its software pipeline."""

    BLOCK_M: int
    BLOCK_N: int
    num_warps: int
    num_stages: int


TileList = tuple[TileConfig, ...]


class TilesByRows(NamedTuple):
    """The tiles of a kernel by the dtype and width of the rows that it reads."""

    half: TileList
    """16-bit rows of at most 64 numbers."""
    wide: TileList
    """16-bit rows of more than 64 numbers."""
    single: TileList
    """float32 rows of any width."""


def _same_for_all_rows(*tiles: TileConfig) -> TilesByRows:
    return TilesByRows(tiles, tiles, tiles)


_SOFTMAX_FORWARD = TilesByRows(
    half=(TileConfig(64, 64, 4, 3), TileConfig(64, 32, 4, 2)),
    wide=(TileConfig(64, 64, 4, 3), TileConfig(64, 32, 4, 2)),
    single=(TileConfig(64, 32, 4, 2), TileConfig(32, 32, 4, 1)),
)
_KEYS_BACKWARD = TilesByRows(
    half=(TileConfig(64, 64, 4, 3), TileConfig(32, 64, 4, 2)),
    wide=(TileConfig(32, 64, 4, 3), TileConfig(32, 32, 4, 2)),
    single=(TileConfig(32, 64, 4, 1), TileConfig(16, 32, 4, 1)),
)
_QUERIES_BACKWARD = TilesByRows(
    half=(TileConfig(64, 64, 4, 3), TileConfig(64, 32, 4, 2)),
    wide=(TileConfig(128, 64, 8, 3), TileConfig(64, 32, 4, 2)),
    single=(TileConfig(64, 32, 4, 1), TileConfig(32, 16, 4, 1)),
)
_SINKHORN_PASS = TilesByRows(
    half=(TileConfig(128, 64, 4, 3), TileConfig(64, 64, 4, 2)),
    wide=(TileConfig(64, 64, 4, 3), TileConfig(64, 32, 4, 2)),
    single=(TileConfig(64, 32, 4, 2), TileConfig(32, 32, 4, 1)),
)

TILES = {
    "pointwise.forward": _SOFTMAX_FORWARD,
    "pointwise.keys_backward": _KEYS_BACKWARD,
    "pointwise.queries_backward": _QUERIES_BACKWARD,
    "entmax.forward": _SOFTMAX_FORWARD,
    "entmax.keys_backward": _KEYS_BACKWARD,
    "entmax.queries_backward": _QUERIES_BACKWARD._replace(
        wide=(TileConfig(64, 64, 4, 2), TileConfig(64, 32, 4, 2)),
    ),
    "laplace.forward": _SOFTMAX_FORWARD,
    "laplace.keys_backward": _KEYS_BACKWARD._replace(
        wide=(TileConfig(32, 64, 4, 2), TileConfig(32, 32, 4, 2)),
    ),
    "laplace.queries_backward": _QUERIES_BACKWARD._replace(
        wide=(TileConfig(64, 32, 4, 2), TileConfig(32, 32, 4, 2)),
    ),
    "log_totals.forward": _SOFTMAX_FORWARD,
    "weights.row_statistics": _SOFTMAX_FORWARD,
    "weights.column_sums": _SOFTMAX_FORWARD._replace(
        single=(TileConfig(32, 64, 4, 2), TileConfig(32, 32, 4, 1)),
    ),
    "sinkhorn.potential": _SINKHORN_PASS,
    "sinkhorn.weighted_sum": _SINKHORN_PASS,
    "sinkhorn.average_values": _SINKHORN_PASS,
    "sinkhorn.values_backward": _SINKHORN_PASS,
    "sinkhorn.pullback": TilesByRows(
        half=(TileConfig(64, 64, 4, 2), TileConfig(64, 32, 4, 2)),
        wide=(TileConfig(64, 32, 4, 2), TileConfig(32, 32, 4, 1)),
        single=(TileConfig(64, 32, 4, 1), TileConfig(32, 16, 4, 1)),
    ),
    "additive.forward": _same_for_all_rows(TileConfig(OWNED_TOKENS, 32, 4, 2), TileConfig(OWNED_TOKENS, 16, 4, 1)),
    "additive.keys_backward": _same_for_all_rows(
        TileConfig(32, OWNED_TOKENS, 4, 1), TileConfig(16, OWNED_TOKENS, 4, 1)
    ),
    "additive.queries_backward": _same_for_all_rows(
        TileConfig(OWNED_TOKENS, 32, 4, 1), TileConfig(OWNED_TOKENS, 16, 4, 1)
    ),
    "linear.key_sums": _same_for_all_rows(TileConfig(CHUNK, CHUNK, 4, 1)),
    "linear.query_sums": _same_for_all_rows(TileConfig(CHUNK, CHUNK, 4, 1)),
    "linear.forward": _same_for_all_rows(TileConfig(CHUNK, CHUNK, 8, 1)),
    "linear.queries_backward": _same_for_all_rows(TileConfig(CHUNK, CHUNK, 8, 1)),
    "linear.keys_backward": _same_for_all_rows(TileConfig(CHUNK, CHUNK, 8, 1)),
}
"""Tiles by `module.kernel`."""


def tiles_for(kernel_name: str, *rows: Tensor) -> TileList:
    """The tiles of a kernel for rows of this dtype, of which the widest counts.

    >>> tiles_for("laplace.forward", torch.zeros(1, 1, 2, 128))[0]
    TileConfig(BLOCK_M=64, BLOCK_N=32, num_warps=4, num_stages=2)
    """
    tiles = TILES[kernel_name]
    if rows[0].dtype == torch.float32:
        return tiles.single
    return tiles.wide if max(x.shape[-1] for x in rows) > 64 else tiles.half
