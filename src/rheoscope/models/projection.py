"""A projection: the map from the rows that a layer reads to queries, keys and values. `projections.py` has every kind."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rheoscope.attention.mask import Mask, NoMask
from rheoscope.attention.position import RotaryMap
from rheoscope.models.config import Config

Cloud = Float[Tensor, "b n d"]
Rows = Float[Tensor, "b n rows"]
Weight = Float[Tensor, "*models rows d"]
Queries = Float[Tensor, "b h n k"]
Keys = Float[Tensor, "b g n k"]
Values = Float[Tensor, "b g n e"]
Projected = tuple[Queries, Keys, Values]
Factors = list[tuple[Tensor, Tensor | None]]
"""Weights (g, d, k) and biases (g, k) of queries, keys and values."""


class Projection(nn.Module):
    """The map from the rows that a layer reads to q, k and v.

    A subclass defines `row_names`, `split` and `apply_positions`.

    **Laws** `factors` are the operators of `project_heads`, so M and F of the View reproduce scores and displacements. Gradients reach
    every parameter. Every projection draws the same random numbers for a seed, so shared parts start with equal weights.
    """

    row_names: tuple[str, ...] = ("q", "k", "v")
    """The rows of the linear map, in order: `q`, `k`, `v`, `gate`."""
    mask: Mask = NoMask()
    """A mask in addition to the model's own."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.n_heads, self.width = config.heads, config.head_width
        all_shapes = {
            "q": (config.heads, config.head_width),
            "k": (config.kv_heads, config.head_width),
            "v": (config.kv_heads, config.value_width),
            "gate": (config.heads, 1),
        }
        self.layout = {name: all_shapes[name] for name in self.row_names}
        self.full_layout = {name: all_shapes[name] for name in ("q", "k", "v")}
        self.check(config)

    def check(self, config: Config) -> None:
        """Raise if the config does not suit this projection."""

    def select_rows(self, read: nn.Linear) -> None:
        """Reduce a linear map with the rows of `untied` to the rows of this projection. Gate rows are added as zeros."""
        if self.layout == self.full_layout:
            return
        for name in ("weight", "bias"):
            if (parameter := getattr(read, name)) is not None:
                rows = dict(zip(self.full_layout, parameter.data.split(row_counts(self.full_layout)), strict=True))
                gate_rows = parameter.data.new_zeros(self.n_heads, *parameter.shape[1:])
                parameter.data = torch.cat([rows.get(row_name, gate_rows) for row_name in self.layout])
        read.out_features = len(read.weight)

    def read_rows(self, read: nn.Module, u: Cloud) -> Rows:
        """All rows that the layer computes from its tokens."""
        return read(u)

    def weight(self, W: Weight) -> Weight:
        """The effective weights, computed from the trained ones."""
        return W

    def split(self, rows: Rows, u: Cloud) -> Projected:
        """q, k and v, linear in the tokens, before positions."""
        q, k, v = rows.split(row_counts(self.full_layout), dim=-1)
        return tuple(
            separate_projections(part, width)
            for part, (_, width) in zip((q, k, v), self.full_layout.values(), strict=True)
        )  # type: ignore[return-value]

    def apply_positions(self, q: Queries, k: Keys, rotation: RotaryMap | None) -> tuple[Queries, Keys]:
        """q and k with their positions applied."""
        return (q, k) if rotation is None else (rotation(q), rotation(k))

    def project_heads(self, rows: Rows, u: Cloud, rotation: RotaryMap | None = None) -> Projected:
        """q, k and v, with q and k rotated if there is a rotation."""
        q, k, v = self.split(rows, u)
        return *self.apply_positions(q, k, rotation), v

    def gate(self, rows: Rows) -> Float[Tensor, "b h n 1"] | None:
        """The factors of the head outputs, or None."""
        return None

    def offsets(self) -> tuple[Tensor, Tensor] | None:
        """Constants (h, k) added to the queries and keys of every head, or None."""
        return None

    def maps(self, W: Weight) -> Projected:
        """W_Q, W_K and W_V (models, h, d, k): the images of the axes under the trained weights."""
        W = self.weight(W if W.ndim == 3 else W[None])
        axes = torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
        return self.split(W.mT, axes.expand(len(W), -1, -1))

    def factors(self, read: nn.Linear) -> Factors:
        """W and b of queries, keys and values: the images of the axes and of 0."""
        weights = [part[0] for part in self.maps(read.weight)]
        biases: list[Tensor | None] = [None, None, None]
        if read.bias is not None:
            zeros = read.weight.new_zeros(1, 1, read.weight.shape[-1])
            biases = [part[0, :, 0] for part in self.split(read.bias[None, None], zeros)]
        for side, offset in enumerate(self.offsets() or ()):
            bias = biases[side]
            biases[side] = offset if bias is None else bias + offset
        return list(zip(weights, biases, strict=True))


def linear(u: Cloud, W: Weight, b: Float[Tensor, "*models rows"] | None) -> Rows:
    """u Wᵀ + b. With the weights of several models, the texts of each model use its own weights.

    >>> linear(torch.ones(4, 3, 2), torch.ones(2, 5, 2), None).shape
    torch.Size([4, 3, 5])
    """
    if W.ndim == 2:
        return nn.functional.linear(u, W, b)
    grouped = u.unflatten(0, (len(W), -1)).flatten(1, 2)
    out = grouped @ W.mT if b is None else torch.baddbmm(b[:, None], grouped, W.mT)
    return out.view(*u.shape[:-1], -1)


def broadcast_to_texts(x: Float[Tensor, "*models h k"], n_texts: int) -> Float[Tensor, "#b h 1 k"]:
    """Per-head constants in a shape that broadcasts over the tokens of all texts, per model if there are several."""
    return x[None, :, None] if x.ndim == 2 else x.repeat_interleave(n_texts // len(x), 0)[..., None, :]


def separate_projections(rows: Float[Tensor, "b n hk"], width: int) -> Keys:
    """Split rows of concatenated heads into heads of this width."""
    return rows.unflatten(-1, (-1, width)).transpose(1, 2)


def row_counts(layout: dict[str, tuple[int, int]]) -> list[int]:
    """The number of rows of each part."""
    return [count * width for count, width in layout.values()]
