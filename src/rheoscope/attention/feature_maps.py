"""The maps phi of tokens that scores and values are made of, each with its derivative beside it.

A feature is a frozen value: `feature(x)` maps rows of width d to rows of width r, and `feature.pull(x, dy)` carries a
gradient dy of its output back to x and to the tensors that the feature holds. Compose them (`Residual(Tanh(...))`)
instead of adding options.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.part import Part

Rows = Float[Tensor, "b h t d"]
Mapped = Float[Tensor, "b h t r"]
Pulled = tuple[Tensor, dict[str, Tensor]]


class Feature(Part, ABC):
    """A map of rows; `pull` is its vector-Jacobian product."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def pull(self, x: Tensor, dy: Tensor) -> Pulled: ...

    @property
    def identity(self) -> bool:
        """Whether it leaves every row as it is."""
        return False

    @property
    def unit(self) -> bool:
        """Whether it divides every row by its length and does nothing else."""
        return False

    def rounded(self, x: Tensor) -> Tensor:
        """Rows of half precision mapped to rows of the same: in float32, rounded once."""
        return self(x.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)

    @property
    def linear(self) -> bool:
        """Whether it is x A with some matrix A."""
        raise self.untold("linear", "whether it is a linear map")

    def after(self, W: Float[Tensor, "*h d k"]) -> Float[Tensor, "*h d r"]:
        """The one matrix that does what W and then this map do, where the map is linear."""
        raise self.untold("after", "which matrix it is after another")

    def width(self, d: int) -> int:
        """How wide a row of width d becomes."""
        raise self.untold("width", "how wide its rows are")

    @property
    def flops(self) -> int:
        """FLOPs of the matrix products for one row."""
        raise self.untold("flops", "what it costs")

    @property
    def elementwise(self) -> str:
        """The name by which kernels know it, where it maps every number by itself; nothing where they do not."""
        return ""


def of_heads(x: Tensor, some: list[int], axis: int) -> Tensor:
    """A tensor that holds something for each head along `axis`, for some of them; shared by all where it has no such axis.

    >>> of_heads(torch.eye(3), [2], 0).shape, of_heads(torch.eye(3), [2], -3).shape, of_heads(torch.ones(1), [2], 0).shape
    (torch.Size([1, 3]), torch.Size([3, 3]), torch.Size([1]))
    """
    if x.ndim < (-axis if axis < 0 else axis + 1) or x.shape[axis] == 1:
        return x
    return x.index_select(axis, torch.tensor(some, device=x.device))


def _weight_gradient(x: Tensor, dy: Tensor, like: Tensor) -> Tensor:
    return (x.mT @ dy).sum_to_size(like.shape)


def product(*matrices: Tensor) -> int:
    """FLOPs of one row through these matrices."""
    return sum(2 * W.shape[-2] * W.shape[-1] for W in matrices)


@dataclass(frozen=True, eq=False)
class Identity(Feature):
    """phi(x) = x."""

    identity = True
    linear = True
    flops = 0

    def __call__(self, x: Rows) -> Rows:
        return x

    def rounded(self, x: Rows) -> Rows:
        return x

    def pull(self, x: Rows, dy: Rows) -> Pulled:
        return dy, {}

    def of_heads(self, some: list[int]) -> "Identity":
        return self

    def width(self, d: int) -> int:
        return d

    def after(self, W: Float[Tensor, "*h d k"]) -> Float[Tensor, "*h d k"]:
        return W


@dataclass(frozen=True, eq=False)
class Linear(Feature):
    """phi(x) = x W, one W for all heads (d, r) or one a head (h, d, r)."""

    W: Float[Tensor, "*h d r"]

    linear = True

    def __call__(self, x: Rows) -> Mapped:
        return x @ self.W.to(x.dtype)

    def rounded(self, x: Rows) -> Mapped:
        return self(x)  # one product, summed in float32 by the matrix units

    def pull(self, x: Rows, dy: Mapped) -> Pulled:
        return dy @ self.W.to(x.dtype).mT, {"W": _weight_gradient(x, dy, self.W)}

    def of_heads(self, some: list[int]) -> "Linear":
        return replace(self, W=of_heads(self.W, some, -3))

    def after(self, W: Float[Tensor, "*h d k"]) -> Float[Tensor, "*h d r"]:
        return W @ self.W.to(W.dtype)

    def width(self, d: int) -> int:
        return self.W.shape[-1]

    @property
    def flops(self) -> int:
        return product(self.W)


@dataclass(frozen=True, eq=False)
class Unit(Feature):
    """phi(x) = x / |x|, and 0 with gradient 0 at 0: the cosine is the dot product of units."""

    eps: float = 1e-12

    unit = True
    linear = False
    flops = 0

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

    def of_heads(self, some: list[int]) -> "Unit":
        return self

    def width(self, d: int) -> int:
        return d


@dataclass(frozen=True, eq=False)
class EluPlusOne(Feature):
    """phi(x) = elu(x) + 1 > 0, the positive feature map of linear attention (arXiv:2006.16236)."""

    elementwise = "elu_plus_one"
    linear = False
    flops = 0

    def __call__(self, x: Rows) -> Rows:
        return torch.where(x > 0, x + 1, x.clamp(max=0).exp())  # elu(x) + 1 would cancel to 0 below -37

    def pull(self, x: Rows, dy: Rows) -> Pulled:
        return dy * x.clamp(max=0).exp(), {}

    def of_heads(self, some: list[int]) -> "EluPlusOne":
        return self

    def width(self, d: int) -> int:
        return d


@dataclass(frozen=True, eq=False)
class Tanh(Feature):
    """phi(x) = tanh(x W + b) U: one hidden layer, any d -> r."""

    W: Float[Tensor, "*h d a"]
    b: Float[Tensor, "*h 1 a"]
    U: Float[Tensor, "*h a r"]

    linear = False

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

    def of_heads(self, some: list[int]) -> "Tanh":
        return replace(self, **{name: of_heads(getattr(self, name), some, -3) for name in ("W", "b", "U")})

    def width(self, d: int) -> int:
        return self.U.shape[-1]

    @property
    def flops(self) -> int:
        return product(self.W, self.U)


@dataclass(frozen=True, eq=False)
class Residual(Feature):
    """phi(x) = x + f(x)."""

    f: Feature

    def __call__(self, x: Rows) -> Rows:
        return x + self.f(x)

    def pull(self, x: Rows, dy: Rows) -> Pulled:
        dx, tensors = self.f.pull(x, dy)
        return dy + dx, under("f", tensors)

    def of_heads(self, some: list[int]) -> "Residual":
        return replace(self, f=self.f.of_heads(some))

    @property
    def linear(self) -> bool:
        return self.f.linear

    def after(self, W: Float[Tensor, "*h d k"]) -> Float[Tensor, "*h d k"]:
        return W + self.f.after(W)

    def width(self, d: int) -> int:
        return d

    @property
    def flops(self) -> int:
        return self.f.flops


def under(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same gradients, named as seen from the part that holds `name`."""
    return {f"{name}.{key}": value for key, value in tensors.items()}


def added(a: dict[str, Tensor], b: dict[str, Tensor]) -> dict[str, Tensor]:
    """The sum of two gradient tables (a map used for queries and for keys is pulled twice)."""
    return a | {key: a[key] + value if key in a else value for key, value in b.items()}
