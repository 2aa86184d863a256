"""alpha-entmax: between softmax (alpha -> 1) and sparsemax (alpha = 2), with weights exactly 0 (arXiv:1905.05702).

    a = argmax_p <p, s> + H_alpha(p)  =  [ (alpha - 1) s - tau ]_+ ^ (1 / (alpha - 1)),   tau such that a sums to 1

The threshold tau comes from sorting for alpha = 2 and 1.5, from Newton's method for any other alpha < 2, and from bisection above.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.normaliser.domain import Normaliser, Pulled, Tiled
from rheoscope.shapes import RheoscopeError, Scores, Weights

Threshold = Float[Tensor, "b h m 1"]


@dataclass(frozen=True, eq=False)
class Entmax(Normaliser):
    """Sparse weights that sum to 1; `alpha=2` is sparsemax, `alpha=1.5` the usual entmax."""

    alpha: float = 1.5

    shift_invariant: ClassVar[bool] = True
    sums_to_one: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.alpha, int | float) or not 1 < self.alpha < torch.inf:
            raise RheoscopeError(
                f"entmax needs a finite alpha > 1, got {self.alpha!r}; alpha -> 1 is softmax: type mechanism('scaled_dot')"
            )

    def __call__(self, s: Scores) -> Weights:
        return _Entmax.apply(s, self.alpha)

    def pull(self, s: Scores, a: Weights, d: Weights) -> Pulled:
        return entmax_pull(a, d, self.alpha), {}

    @property
    def tiled(self) -> Tiled | None:
        """Newton's method finds the threshold surely where sums of u^{1/(alpha - 1)} are convex."""
        return Tiled("entmax", self.alpha) if self.alpha <= 2 else None

    def of_heads(self, some: list[int]) -> "Entmax":
        return self


def entmax_pull(a: Weights, d: Weights, alpha: float) -> Scores:
    """R = g (d - <g, d>/<g, 1>) with g = a^{2 - alpha} on the support."""
    g = torch.where(a > 0, a.clamp(min=torch.finfo(a.dtype).tiny) ** (2 - alpha), 0)
    total = g.sum(-1, keepdim=True)
    return g * (d - (g * d).sum(-1, keepdim=True) / torch.where(total == 0, 1, total))


def entmax(s: Scores, alpha: float) -> Weights:
    """The weights of one alpha, by the fastest exact way there is."""
    empty = (s == -torch.inf).all(-1, keepdim=True)
    s = torch.where(empty, 0, s)
    x = (s - s.amax(-1, keepdim=True)) * (alpha - 1)
    search = newton if alpha < 2 else bisect
    tau = {2.0: _sparsemax_threshold, 1.5: _entmax15_threshold}.get(alpha, lambda x: search(x, alpha))(x)
    return torch.where(empty, 0, (x - tau).clamp(min=0) ** (1 / (alpha - 1)))


def newton(x: Scores, alpha: float, steps: int = 24) -> Threshold:
    """tau by Newton's method, for alpha < 2: of u = [x - tau]_+ the norm |u|_r, r = 1/(alpha - 1), is convex and falls with tau,
    so steps from -1 rise and never pass the root. 15 are enough for 100,000 keys; nobody waits for a GPU to say so."""
    r, tau = 1 / (alpha - 1), torch.full_like(x[..., :1], -1.0)
    for _ in range(steps):
        u = (x - tau).clamp(min=0)
        slope = u ** (r - 1)
        total = (u * slope).sum(-1, keepdim=True)
        tau = tau + (total - total ** (1 - 1 / r)) / slope.sum(-1, keepdim=True)
    return tau


def bisect(x: Scores, alpha: float, steps: int = 80) -> Threshold:
    """tau by halving [-1, 0], the interval in which it lies when the largest x is 0; for any alpha, slow and obvious."""
    low, width = torch.full_like(x[..., :1], -1.0), 1.0
    for _ in range(steps):
        width /= 2
        middle = low + width
        too_much = ((x - middle).clamp(min=0) ** (1 / (alpha - 1))).sum(-1, keepdim=True) >= 1
        low = torch.where(too_much, middle, low)
    return low + width / 2


def _sparsemax_threshold(x: Scores) -> Threshold:
    """tau_k = (x_1 + … + x_k - 1)/k for the largest k with x_k > tau_k (arXiv:1602.02068)."""
    x, count = _sorted(x)
    tau = (x.cumsum(-1) - 1) / count
    return tau.gather(-1, (x > tau).sum(-1, keepdim=True) - 1)


def _entmax15_threshold(x: Scores) -> Threshold:
    """tau_k = mean_k - sqrt((1 - k var_k)/k) over the k largest, for the largest k with x_k >= tau_k."""
    x, count = _sorted(x)
    mean, square = x.cumsum(-1) / count, x.square().cumsum(-1) / count
    tau = mean - ((1 - count * (square - mean.square())) / count).clamp(min=0).sqrt()
    return tau.gather(-1, (x >= tau).sum(-1, keepdim=True) - 1)


def _sorted(x: Scores) -> tuple[Scores, Float[Tensor, " n"]]:
    """Scores from the largest down, clipped where they are sure to get no weight (1 below the largest), and 1..n."""
    x = x.clamp(min=-1).sort(-1, descending=True).values
    return x, torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)


class _Entmax(torch.autograd.Function):
    """The forward is found by a search, so its derivative is stated rather than traced."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, alpha: float) -> Tensor:
        a = entmax(s, alpha)
        ctx.save_for_backward(a)
        ctx.alpha = alpha
        return a

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None]:
        (a,) = ctx.saved_tensors
        return entmax_pull(a, d, ctx.alpha), None
