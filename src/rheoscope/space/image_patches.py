"""The patches of an image: where each token lies, and the image itself."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, UInt8
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Patches:
    """`places` (n, 2) are the row and the column of every token, -1 for special tokens. `photo` is what the network sees, in red,
    green and blue from 0 to 255."""

    places: Int[Tensor, "n 2"]
    photo: UInt8[Tensor, "h w 3"]

    @property
    def grid_size(self) -> tuple[int, int]:
        """The number of rows and of columns."""
        rows, columns = (self.places.max(0).values + 1).tolist()
        return rows, columns

    def on_grid(self, tokens: Iterable[int], values: Iterable[float]) -> Float[np.ndarray, "rows columns"]:
        """Values of tokens at their patches. A patch without a value is NaN, and special tokens are left out."""
        grid = np.full(self.grid_size, np.nan)
        for token, value in zip(tokens, values, strict=True):
            row, column = self.places[int(token)].tolist()
            if row >= 0:
                grid[row, column] = value
        return grid
