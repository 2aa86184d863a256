"""A projection: the map from the rows that a layer reads to queries, keys and values. `projections.py` has every kind."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rheoscope.attention.position import RotaryMap
from rheoscope.messages.message import Message
from rheoscope.models.config import Config, set_fields
from rheoscope.models.orthonormal_rows import orthonormal_rows
from rheoscope.shapes import RheoscopeError

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

    A subclass defines `query_key_rows`, `queries_keys` and `apply_positions`. Values are free rows, rows that preserve lengths and
    angles, or the keys themselves: the field `values` of the config.

    **Laws** `factors` are the operators of `project_heads`, so M and F of the View reproduce scores and displacements. Gradients reach
    every parameter. Every projection draws the same random numbers for a seed, so shared parts start with equal weights. The weights
    of isometric rows satisfy WᵀW = I for every head, in every forward pass and therefore after every step of any optimiser.
    """

    query_key_rows: tuple[str, ...] = ("q", "k")
    """The rows from which queries and keys are computed."""
    extra_rows: tuple[str, ...] = ()
    """Further rows after those of the values: `gate`."""
    isometric_rows: frozenset[str] = frozenset()
    """The rows of queries and keys whose weights are made orthonormal, head by head."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.n_heads, self.width = config.heads, config.head_width
        all_shapes = {
            "q": (config.heads, config.head_width),
            "k": (config.kv_heads, config.head_width),
            "v": (config.kv_heads, config.value_width),
            "gate": (config.heads, 1),
        }
        row_names = (*self.query_key_rows, *self.value_rows(config), *self.extra_rows)
        self.layout = {name: all_shapes[name] for name in row_names}
        self.full_layout = {name: all_shapes[name] for name in ("q", "k", "v")}
        self.orthonormal = self.isometric_rows | ({"v"} if config.values == "isometric" else set())
        self.check_values(config)
        self.check(config)

    def value_rows(self, config: Config) -> tuple[str, ...]:
        """The rows of the values; none if values are keys."""
        return () if config.values == "shared" else ("v",)

    def check_values(self, config: Config) -> None:
        """Raise if the config does not suit its choice of values."""
        if config.values == "shared" and config.value_width != config.head_width:
            raise RheoscopeError(
                Message(
                    "values=shared uses keys as values, got value_width={value_width} and head_width={head_width}",
                    value_width=config.value_width,
                    head_width=config.head_width,
                ),
                set_fields(value_width=config.head_width),
            )
        widths = {name: self.layout[name][1] for name in self.layout if name in self.orthonormal}
        if widths and max(widths.values()) > config.width:
            raise RheoscopeError(
                Message(
                    "a token of width {width} has no isometric image of width {head_width}",
                    width=config.width,
                    head_width=max(widths.values()),
                ),
                set_fields(head_width=config.width // config.heads),
            )

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
                selected_rows = [rows.get(row_name, gate_rows) for row_name in self.layout]
                parameter.data = torch.cat([parameter.data[:0], *selected_rows])
        read.out_features = len(read.weight)

    def read_rows(self, read: nn.Module, u: Cloud) -> Rows:
        """All rows that the layer computes from its tokens."""
        if not self.orthonormal:
            return read(u)
        linear_module: Any = read
        return linear(u, self.weight(linear_module.weight), linear_module.bias)

    def weight(self, W: Weight) -> Weight:
        """The effective weights, computed from the trained ones: isometric rows are orthonormal for every head.

        W = L⁻¹V with VVᵀ = LLᵀ (Cholesky QR): one k×k factorisation per head. It is exact, batched over heads and models, and
        differentiable once. A Newton–Schulz iteration would need ten products for the same accuracy, and a Householder QR works on
        d×k. The length of V has no effect, so weight decay changes only the pace.
        """
        if not self.orthonormal:
            return W
        blocks = W.split([count * width for count, width, _ in self.weight_blocks()], dim=-2)
        effective = [
            orthonormal_rows(block.unflatten(-2, (-1, width))).flatten(-3, -2) if is_orthonormal else block
            for block, (_, width, is_orthonormal) in zip(blocks, self.weight_blocks(), strict=True)
        ]
        return torch.cat(effective, -2)

    def weight_blocks(self) -> list[tuple[int, int, bool]]:
        """Runs of rows that are treated alike: the number of heads, the head width, and whether they are made orthonormal."""
        blocks: list[tuple[int, int, bool]] = []
        for name, (count, width) in self.layout.items():
            is_orthonormal = name in self.orthonormal
            if blocks and blocks[-1][1:] == (width, is_orthonormal):
                blocks[-1] = (blocks[-1][0] + count, width, is_orthonormal)
            else:
                blocks.append((count, width, is_orthonormal))
        return blocks

    def split(self, rows: Rows, u: Cloud) -> Projected:
        """q, k and v, linear in the tokens, before positions."""
        heads = self.row_heads(rows)
        q, k = self.queries_keys(heads, u.to(rows.dtype))
        return q, k, heads.get("v", k)

    def row_heads(self, rows: Rows) -> dict[str, Tensor]:
        """The rows by name, with their heads separated."""
        parts = rows.split(row_counts(self.layout), dim=-1) if self.layout else ()
        shapes = self.layout.items()
        return {name: separate_projections(part, width) for (name, (_, width)), part in zip(shapes, parts, strict=True)}

    def queries_keys(self, heads: dict[str, Tensor], u: Cloud) -> tuple[Queries, Keys]:
        """q and k from the rows that are named in `query_key_rows`, before positions."""
        return heads["q"], heads["k"]

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
    return out.view(*u.shape[:-1], W.shape[-2])


def broadcast_to_texts(x: Float[Tensor, "*models h k"], n_texts: int) -> Float[Tensor, "#b h 1 k"]:
    """Per-head constants in a shape that broadcasts over the tokens of all texts, per model if there are several."""
    return x[None, :, None] if x.ndim == 2 else x.repeat_interleave(n_texts // len(x), 0)[..., None, :]


def separate_projections(rows: Float[Tensor, "b n hk"], width: int) -> Keys:
    """Split rows of concatenated heads into heads of this width."""
    return rows.unflatten(-1, (-1, width)).transpose(1, 2)


def row_counts(layout: dict[str, tuple[int, int]]) -> list[int]:
    """The number of rows of each part."""
    return [count * width for count, width in layout.values()]
