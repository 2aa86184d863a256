"""The maps phi of tokens that scores and values are made of, each with its derivative beside it.

A feature is a frozen value: `feature(x)` maps rows of width d to rows of width r, and `feature.pull(x, dy)` carries a
gradient dy of its output back to x and to the tensors that the feature holds. Compose them (`Residual(Tanh(...))`)
instead of adding options.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

Rows = Float[Tensor, "b h t d"]
Mapped = Float[Tensor, "b h t r"]
Pulled = tuple[Tensor, dict[str, Tensor]]


@runtime_checkable
class Feature(Protocol):
    """A map of rows; `pull` is its vector-Jacobian product."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def pull(self, x: Tensor, dy: Tensor) -> Pulled: ...


def _weight_gradient(x: Tensor, dy: Tensor, like: Tensor) -> Tensor:
    return (x.mT @ dy).sum_to_size(like.shape)


@dataclass(frozen=True, eq=False)
class Identity:
    """phi(x) = x."""

    def __call__(self, x: Rows) -> Rows:
        return x

    def pull(self, x: Rows, dy: Rows) -> Pulled:
        return dy, {}


@dataclass(frozen=True, eq=False)
class Linear:
    """phi(x) = x W, one W for all heads (d, r) or one a head (h, d, r)."""

    W: Float[Tensor, "*h d r"]

    def __call__(self, x: Rows) -> Mapped:
        return x @ self.W.to(x.dtype)

    def pull(self, x: Rows, dy: Mapped) -> Pulled:
        return dy @ self.W.to(x.dtype).mT, {"W": _weight_gradient(x, dy, self.W)}


@dataclass(frozen=True, eq=False)
class Unit:
    """phi(x) = x / |x|, and 0 with gradient 0 at 0: the cosine is the dot product of units."""

    eps: float = 1e-12

    def _length(self, x: Rows) -> Float[Tensor, "b h t 1"]:
        """|x|, and infinity where x is 0, so that dividing by it leaves nothing."""
        length = x.norm(dim=-1, keepdim=True)
        return length.masked_fill(length <= self.eps, torch.inf)

    def __call__(self, x: Rows) -> Rows:
        return x / self._length(x)

    def pull(self, x: Rows, dy: Rows) -> Pulled:
        y = self(x)
        along = (y * dy).sum(-1, keepdim=True)
        return (dy - y * along) / self._length(x), {}


@dataclass(frozen=True, eq=False)
class EluPlusOne:
    """phi(x) = elu(x) + 1 > 0, the positive feature map of linear attention (arXiv:2006.16236)."""

    def __call__(self, x: Rows) -> Rows:
        return torch.where(x > 0, x + 1, x.clamp(max=0).exp())  # elu(x) + 1 would cancel to 0 below -37

    def pull(self, x: Rows, dy: Rows) -> Pulled:
        return dy * x.clamp(max=0).exp(), {}


@dataclass(frozen=True, eq=False)
class Tanh:
    """phi(x) = tanh(x W + b) U: one hidden layer, any d -> r."""

    W: Float[Tensor, "*h d a"]
    b: Float[Tensor, "*h 1 a"]
    U: Float[Tensor, "*h a r"]

    def hidden(self, x: Rows) -> Float[Tensor, "b h t a"]:
        return torch.tanh(x @ self.W.to(x.dtype) + self.b.to(x.dtype))

    def __call__(self, x: Rows) -> Mapped:
        return self.hidden(x) @ self.U.to(x.dtype)

    def pull(self, x: Rows, dy: Mapped) -> Pulled:
        t = self.hidden(x)
        before = (dy @ self.U.to(x.dtype).mT) * (1 - t * t)
        tensors = {
            "W": _weight_gradient(x, before, self.W),
            "b": before.sum(-2, keepdim=True).sum_to_size(self.b.shape),
            "U": _weight_gradient(t, dy, self.U),
        }
        return before @ self.W.to(x.dtype).mT, tensors


@dataclass(frozen=True, eq=False)
class Residual:
    """phi(x) = x + f(x)."""

    f: Feature

    def __call__(self, x: Rows) -> Rows:
        return x + self.f(x)

    def pull(self, x: Rows, dy: Rows) -> Pulled:
        dx, tensors = self.f.pull(x, dy)
        return dy + dx, under("f", tensors)


def under(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same gradients, named as seen from the part that holds `name`."""
    return {f"{name}.{key}": value for key, value in tensors.items()}


def added(a: dict[str, Tensor], b: dict[str, Tensor]) -> dict[str, Tensor]:
    """The sum of two gradient tables (a map used for queries and for keys is pulled twice)."""
    return a | {key: a[key] + value if key in a else value for key, value in b.items()}
