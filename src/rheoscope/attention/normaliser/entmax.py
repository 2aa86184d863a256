"""alpha-entmax: sparse weights between softmax (alpha -> 1) and sparsemax (alpha = 2) (arXiv:1905.05702).

    a = argmax_p <p, s> + H_alpha(p)  =  [ (alpha - 1) s - tau ]_+ ^ (1 / (alpha - 1)),   tau such that a sums to 1

The threshold tau comes from sorting for alpha = 2 and 1.5, from Newton's method for other alpha < 2, and from bisection
for alpha > 2.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.normaliser.domain import GpuKernel, Normaliser, Pullback
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError, Scores, Weights

Threshold = Float[Tensor, "b h m 1"]


@dataclass(frozen=True, eq=False)
class Entmax(Normaliser):
    """Sparse weights that sum to 1; `alpha=2` is sparsemax, `alpha=1.5` the usual entmax."""

    alpha: float = 1.5

    is_shift_invariant: ClassVar[bool] = True
    sums_to_one: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.alpha, int | float) or not 1 < self.alpha < torch.inf:
            raise RheoscopeError(
                Message("entmax needs a finite alpha > 1 (1 is softmax), got {received!r}", received=self.alpha),
                Advice("rs.mechanism('scaled_dot')"),
            )

    def __call__(self, s: Scores) -> Weights:
        return _Entmax.apply(s, self.alpha)

    def pullback(self, s: Scores, a: Weights, d: Weights) -> Pullback:
        return entmax_pullback(a, d, self.alpha), {}

    @property
    def gpu_kernel(self) -> GpuKernel | None:
        """Newton's method is guaranteed to converge for alpha <= 2, where sums of u^{1/(alpha - 1)} are convex."""
        return GpuKernel("entmax", self.alpha) if self.alpha <= 2 else None

    def select_heads(self, heads: list[int]) -> "Entmax":
        return self


def entmax_pullback(a: Weights, d: Weights, alpha: float) -> Scores:
    """R = g (d - <g, d>/<g, 1>) with g = a^{2 - alpha} on the support."""
    g = torch.where(a > 0, a.clamp(min=torch.finfo(a.dtype).tiny) ** (2 - alpha), 0)
    total = g.sum(-1, keepdim=True)
    return g * (d - (g * d).sum(-1, keepdim=True) / torch.where(total == 0, 1, total))


def entmax(s: Scores, alpha: float) -> Weights:
    """Entmax weights by the fastest exact method for this alpha."""
    is_empty_row = (s == -torch.inf).all(-1, keepdim=True)
    s = torch.where(is_empty_row, 0, s)
    x = (s - s.amax(-1, keepdim=True)) * (alpha - 1)
    search_threshold = newton_threshold if alpha < 2 else bisection_threshold
    tau = {2.0: _sparsemax_threshold, 1.5: _entmax15_threshold}.get(alpha, lambda x: search_threshold(x, alpha))(x)
    return torch.where(is_empty_row, 0, (x - tau).clamp(min=0) ** (1 / (alpha - 1)))


def newton_threshold(x: Scores, alpha: float, steps: int = 24) -> Threshold:
    """tau by Newton's method, for alpha < 2.

    With u = [x - tau]_+ and r = 1/(alpha - 1), the norm |u|_r is convex and decreases with tau. Steps from -1 therefore
    increase and never pass the root. 15 steps suffice for 100,000 keys; a fixed number avoids a GPU synchronisation.
    """
    r, tau = 1 / (alpha - 1), torch.full_like(x[..., :1], -1.0)
    for _ in range(steps):
        u = (x - tau).clamp(min=0)
        slope = u ** (r - 1)
        total = (u * slope).sum(-1, keepdim=True)
        tau = tau + (total - total ** (1 - 1 / r)) / slope.sum(-1, keepdim=True)
    return tau


def bisection_threshold(x: Scores, alpha: float, steps: int = 80) -> Threshold:
    """tau by bisection of [-1, 0], which contains it when the largest x is 0; slow, but valid for any alpha."""
    low, interval = torch.full_like(x[..., :1], -1.0), 1.0
    for _ in range(steps):
        interval /= 2
        middle = low + interval
        sum_too_large = ((x - middle).clamp(min=0) ** (1 / (alpha - 1))).sum(-1, keepdim=True) >= 1
        low = torch.where(sum_too_large, middle, low)
    return low + interval / 2


def _sparsemax_threshold(x: Scores) -> Threshold:
    """tau_k = (x_1 + … + x_k - 1)/k for the largest k with x_k > tau_k (arXiv:1602.02068)."""
    x, rank = _sorted_scores(x)
    tau = (x.cumsum(-1) - 1) / rank
    return tau.gather(-1, (x > tau).sum(-1, keepdim=True) - 1)


def _entmax15_threshold(x: Scores) -> Threshold:
    """tau_k = mean_k - sqrt((1 - k var_k)/k) over the k largest, for the largest k with x_k >= tau_k."""
    x, rank = _sorted_scores(x)
    mean, mean_square = x.cumsum(-1) / rank, x.square().cumsum(-1) / rank
    tau = mean - ((1 - rank * (mean_square - mean.square())) / rank).clamp(min=0).sqrt()
    return tau.gather(-1, (x >= tau).sum(-1, keepdim=True) - 1)


def _sorted_scores(x: Scores) -> tuple[Scores, Float[Tensor, " n"]]:
    """Scores in descending order, clipped 1 below the largest (where the weight is surely 0), and ranks 1..n."""
    x = x.clamp(min=-1).sort(-1, descending=True).values
    return x, torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)


class _Entmax(torch.autograd.Function):
    """Entmax with its closed-form derivative: autograd cannot differentiate the threshold search."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, alpha: float) -> Tensor:
        a = entmax(s, alpha)
        ctx.save_for_backward(a)
        ctx.alpha = alpha
        return a

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None]:
        (a,) = ctx.saved_tensors
        return entmax_pullback(a, d, ctx.alpha), None
