"""Feature maps phi of tokens for scores and values, each with its derivative.

A feature is a frozen dataclass. `feature(x)` maps rows of width d to rows of width r. `feature.pullback(x, dy)` maps the
gradient dy of the output to the gradients of x and of the feature's tensors. Features compose: `Residual(Tanh(...))`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.part import MechanismPart
from rheoscope.messages.message import Message

Rows = Float[Tensor, "b h t d"]
MappedRows = Float[Tensor, "b h t r"]
Pullback = tuple[Tensor, dict[str, Tensor]]


class Feature(MechanismPart, ABC):
    """A map of rows; `pullback` is its vector-Jacobian product."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def pullback(self, x: Tensor, dy: Tensor) -> Pullback: ...

    @property
    def is_identity(self) -> bool:
        """Whether it is the identity."""
        return False

    @property
    def is_unit_norm(self) -> bool:
        """Whether it is x / |x|."""
        return False

    def map_in_float32(self, x: Tensor) -> Tensor:
        """Map half-precision rows in float32 and round once to their dtype."""
        return self(x.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)

    @property
    def is_linear(self) -> bool:
        """Whether it is x A for some matrix A."""
        raise self.missing_method_error("is_linear", Message("whether it is a linear map"))

    def composed_matrix(self, W: Float[Tensor, "*h d k"]) -> Float[Tensor, "*h d r"]:
        """The matrix of x -> phi(x W), for a linear map."""
        raise self.missing_method_error("composed_matrix", Message("its matrix"))

    def output_width(self, d: int) -> int:
        """The width of the output for rows of width d."""
        raise self.missing_method_error("output_width", Message("its output width"))

    @property
    def flops(self) -> int:
        """FLOPs of the matrix products for one row."""
        raise self.missing_method_error("flops", Message("its FLOPs"))

    @property
    def elementwise_name(self) -> str:
        """The kernel name of an elementwise map; empty if kernels do not implement it."""
        return ""


def index_heads(x: Tensor, heads: list[int], axis: int) -> Tensor:
    """Select heads of a tensor along `axis`; a tensor without that axis is shared by all heads and returned unchanged.

    >>> index_heads(torch.eye(3), [2], 0).shape, index_heads(torch.eye(3), [2], -3).shape, index_heads(torch.ones(1), [2], 0).shape
    (torch.Size([1, 3]), torch.Size([3, 3]), torch.Size([1]))
    """
    if x.ndim < (-axis if axis < 0 else axis + 1) or x.shape[axis] == 1:
        return x
    return x.index_select(axis, torch.tensor(heads, device=x.device))


def _weight_gradient(x: Tensor, dy: Tensor, weight: Tensor) -> Tensor:
    return (x.mT @ dy).sum_to_size(weight.shape)


def matrix_flops(*matrices: Tensor) -> int:
    """FLOPs of multiplying one row by these matrices."""
    return sum(2 * W.shape[-2] * W.shape[-1] for W in matrices)


@dataclass(frozen=True, eq=False)
class Identity(Feature):
    """phi(x) = x."""

    is_identity = True
    is_linear = True
    flops = 0

    def __call__(self, x: Rows) -> Rows:
        return x

    def map_in_float32(self, x: Rows) -> Rows:
        return x

    def pullback(self, x: Rows, dy: Rows) -> Pullback:
        return dy, {}

    def select_heads(self, heads: list[int]) -> "Identity":
        return self

    def output_width(self, d: int) -> int:
        return d

    def composed_matrix(self, W: Float[Tensor, "*h d k"]) -> Float[Tensor, "*h d k"]:
        return W


@dataclass(frozen=True, eq=False)
class Linear(Feature):
    """phi(x) = x W, with one W for all heads (d, r) or one per head (h, d, r)."""

    W: Float[Tensor, "*h d r"]

    is_linear = True

    def __call__(self, x: Rows) -> MappedRows:
        return x @ self.W.to(x.dtype)

    def map_in_float32(self, x: Rows) -> MappedRows:
        return self(x)  # matrix units accumulate the product in float32

    def pullback(self, x: Rows, dy: MappedRows) -> Pullback:
        return dy @ self.W.to(x.dtype).mT, {"W": _weight_gradient(x, dy, self.W)}

    def select_heads(self, heads: list[int]) -> "Linear":
        return replace(self, W=index_heads(self.W, heads, -3))

    def composed_matrix(self, W: Float[Tensor, "*h d k"]) -> Float[Tensor, "*h d r"]:
        return W @ self.W.to(W.dtype)

    def output_width(self, d: int) -> int:
        return self.W.shape[-1]

    @property
    def flops(self) -> int:
        return matrix_flops(self.W)


@dataclass(frozen=True, eq=False)
class UnitNorm(Feature):
    """phi(x) = x / |x|, and 0 with gradient 0 at 0: the cosine is the dot product of unit vectors."""

    eps: float = 1e-12

    is_unit_norm = True
    is_linear = False
    flops = 0

    def _norm_or_inf(self, x: Rows) -> Float[Tensor, "b h t 1"]:
        """|x|, and infinity where x is 0, so that dividing by it returns 0."""
        norm = x.norm(dim=-1, keepdim=True)
        return norm.masked_fill(norm <= self.eps, torch.inf)

    def __call__(self, x: Rows) -> Rows:
        return x / self._norm_or_inf(x)

    def pullback(self, x: Rows, dy: Rows) -> Pullback:
        y = self(x)
        radial_grad = (y * dy).sum(-1, keepdim=True)
        return (dy - y * radial_grad) / self._norm_or_inf(x), {}

    def select_heads(self, heads: list[int]) -> "UnitNorm":
        return self

    def output_width(self, d: int) -> int:
        return d


@dataclass(frozen=True, eq=False)
class EluPlusOne(Feature):
    """phi(x) = elu(x) + 1 > 0, the positive feature map of linear attention (arXiv:2006.16236)."""

    elementwise_name = "elu_plus_one"
    is_linear = False
    flops = 0

    def __call__(self, x: Rows) -> Rows:
        return torch.where(x > 0, x + 1, x.clamp(max=0).exp())  # elu(x) + 1 would cancel to 0 below -37

    def pullback(self, x: Rows, dy: Rows) -> Pullback:
        return dy * x.clamp(max=0).exp(), {}

    def select_heads(self, heads: list[int]) -> "EluPlusOne":
        return self

    def output_width(self, d: int) -> int:
        return d


@dataclass(frozen=True, eq=False)
class Tanh(Feature):
    """phi(x) = tanh(x W + b) U: one hidden layer from any width d to any width r."""

    W: Float[Tensor, "*h d a"]
    b: Float[Tensor, "*h 1 a"]
    U: Float[Tensor, "*h a r"]

    is_linear = False

    def hidden(self, x: Rows) -> Float[Tensor, "b h t a"]:
        return torch.tanh(x @ self.W.to(x.dtype) + self.b.to(x.dtype))

    def __call__(self, x: Rows) -> MappedRows:
        return self.hidden(x) @ self.U.to(x.dtype)

    def pullback(self, x: Rows, dy: MappedRows) -> Pullback:
        hidden = self.hidden(x)
        grad_preactivation = (dy @ self.U.to(x.dtype).mT) * (1 - hidden * hidden)
        tensor_grads = {
            "W": _weight_gradient(x, grad_preactivation, self.W),
            "b": grad_preactivation.sum(-2, keepdim=True).sum_to_size(self.b.shape),
            "U": _weight_gradient(hidden, dy, self.U),
        }
        return grad_preactivation @ self.W.to(x.dtype).mT, tensor_grads

    def select_heads(self, heads: list[int]) -> "Tanh":
        return replace(self, **{name: index_heads(getattr(self, name), heads, -3) for name in ("W", "b", "U")})

    def output_width(self, d: int) -> int:
        return self.U.shape[-1]

    @property
    def flops(self) -> int:
        return matrix_flops(self.W, self.U)


@dataclass(frozen=True, eq=False)
class Residual(Feature):
    """phi(x) = x + f(x)."""

    f: Feature

    def __call__(self, x: Rows) -> Rows:
        return x + self.f(x)

    def pullback(self, x: Rows, dy: Rows) -> Pullback:
        dx, tensor_grads = self.f.pullback(x, dy)
        return dy + dx, prefix_keys("f", tensor_grads)

    def select_heads(self, heads: list[int]) -> "Residual":
        return replace(self, f=self.f.select_heads(heads))

    @property
    def is_linear(self) -> bool:
        return self.f.is_linear

    def composed_matrix(self, W: Float[Tensor, "*h d k"]) -> Float[Tensor, "*h d k"]:
        return W + self.f.composed_matrix(W)

    def output_width(self, d: int) -> int:
        return d

    @property
    def flops(self) -> int:
        return self.f.flops


def prefix_keys(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same gradients with `prefix.` before every key."""
    return {f"{prefix}.{key}": value for key, value in tensors.items()}


def add_gradients(a: dict[str, Tensor], b: dict[str, Tensor]) -> dict[str, Tensor]:
    """The sum of two gradient dictionaries, for a map applied to both queries and keys."""
    return a | {key: a[key] + value if key in a else value for key, value in b.items()}
