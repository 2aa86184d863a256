"""How relevant is key k to query q: every score f(q, k) of the literature, side by side.

Nearly all of them are an inner product or a distance of mapped tokens, so two shapes carry the room:

    Gram(phi)           <phi(q), phi(k)> scale        scaled dot, cosine, symmetric relation, linear
    Relation(phi, psi)  <phi(q), psi(k)> scale        bilinear, relation
    Distance(phi)       -scale |phi(q) - phi(k)|^2    metric, Mahalanobis, RBF, metric map

and three more (`Laplace`, `Polynomial`, `Additive`) stand alone. `SoftCap` wraps any of them.

A score is a frozen value with three methods: `score(q, k)` is the formula; `score.pull(q, k, r)` carries the gradient
r of the scores back to q, k and the score's own tensors in closed form; `score.dot(q, k)` gives the same scores as an
ordinary dot product plus a bias per query and per key, or None where no such form exists. The last is what lets a
metric run on a fused dot-product kernel, exactly.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.feature import Feature, Identity, added, under
from rheoscope.shapes import Keys, Queries, RheoscopeError, Scores

Pulled = tuple[Tensor, Tensor, dict[str, Tensor]]


class DotForm(NamedTuple):
    """f(q_i, k_j) = scale q_i . k_j + query_bias_i + key_bias_j, exactly (a bias of None stands for 0).

    The query bias is constant along a row, which softmax does not see: it is computed only when asked for.
    """

    q: Tensor
    k: Tensor
    scale: float
    query_bias: Callable[[], Float[Tensor, "b h m"]] | None = None
    key_bias: Float[Tensor, "b h n"] | None = None

    def scores(self) -> Scores:
        s = self.q @ self.k.mT * self.scale
        if self.query_bias is not None:
            s = s + self.query_bias()[..., :, None]
        return s if self.key_bias is None else s + self.key_bias[..., None, :]


@runtime_checkable
class Score(Protocol):
    """f(q, k) with its pull-back and, where there is one, its dot form.

    `held` is how many numbers a call keeps for one pair (q, k): a lowering sizes its blocks by it.
    """

    @property
    def held(self) -> int: ...

    def __call__(self, q: Tensor, k: Tensor) -> Tensor: ...

    def pull(self, q: Tensor, k: Tensor, r: Tensor) -> Pulled: ...

    def dot(self, q: Tensor, k: Tensor) -> DotForm | None: ...


def _scale(scale: float | None, q: Tensor) -> float:
    return q.shape[-1] ** -0.5 if scale is None else scale


@dataclass(frozen=True, eq=False)
class Gram:
    """f(q, k) = scale <phi(q), phi(k)>: one map for both sides, so f is symmetric and its Gram matrix is PSD.

    `scale=None` is 1/sqrt(d_k). `Gram()` is scaled dot-product attention (arXiv:1706.03762).
    """

    phi: Feature = Identity()
    scale: float | None = None
    held: ClassVar[int] = 1

    def __call__(self, q: Queries, k: Keys) -> Scores:
        return self.phi(q) @ self.phi(k).mT * _scale(self.scale, q)

    def pull(self, q: Queries, k: Keys, r: Scores) -> Pulled:
        c = _scale(self.scale, q)
        dq, from_q = self.phi.pull(q, c * (r @ self.phi(k)))
        dk, from_k = self.phi.pull(k, c * (r.mT @ self.phi(q)))
        return dq, dk, under("phi", added(from_q, from_k))

    def dot(self, q: Queries, k: Keys) -> DotForm:
        return DotForm(self.phi(q), self.phi(k), _scale(self.scale, q))


@dataclass(frozen=True, eq=False)
class Relation:
    """f(q, k) = scale <phi(q), psi(k)>: two maps, any relation, not symmetric (arXiv:2402.08856)."""

    phi: Feature
    psi: Feature = Identity()
    scale: float | None = None
    held: ClassVar[int] = 1

    def __call__(self, q: Queries, k: Keys) -> Scores:
        return self.phi(q) @ self.psi(k).mT * _scale(self.scale, q)

    def pull(self, q: Queries, k: Keys, r: Scores) -> Pulled:
        c = _scale(self.scale, q)
        dq, from_q = self.phi.pull(q, c * (r @ self.psi(k)))
        dk, from_k = self.psi.pull(k, c * (r.mT @ self.phi(q)))
        return dq, dk, under("phi", from_q) | under("psi", from_k)

    def dot(self, q: Queries, k: Keys) -> DotForm:
        return DotForm(self.phi(q), self.psi(k), _scale(self.scale, q))


@dataclass(frozen=True, eq=False)
class Distance:
    """f(q, k) = -scale |phi(q) - phi(k)|^2: relevance is nearness.

    scale = 1/(2 sigma^2) with phi = identity is the Gaussian metric; phi(x) = x L is Mahalanobis with P = L L^T;
    phi = x + tanh(x W + b) U is the metric-attention of arXiv:2412.18288. Under softmax the term in |phi(q)|^2 is
    constant along a row and cancels: a metric is a dot product with the per-key bias -scale |phi(k)|^2.
    """

    phi: Feature = Identity()
    scale: float = 0.5
    held: ClassVar[int] = 1

    def __call__(self, q: Queries, k: Keys) -> Scores:
        return -self.scale * distances(self.phi(q), self.phi(k)).square()

    def pull(self, q: Queries, k: Keys, r: Scores) -> Pulled:
        a, b = self.phi(q), self.phi(k)
        da, db = _pull_difference(a, b, -2 * self.scale * r)
        dq, from_q = self.phi.pull(q, da)
        dk, from_k = self.phi.pull(k, db)
        return dq, dk, under("phi", added(from_q, from_k))

    def dot(self, q: Queries, k: Keys) -> DotForm:
        a, b, c = self.phi(q), self.phi(k), self.scale
        return DotForm(a, b, 2 * c, lambda: -c * torch.linalg.vecdot(a, a), -c * torch.linalg.vecdot(b, b))


@dataclass(frozen=True, eq=False)
class Laplace:
    """f(q, k) = -scale |q - k|, the logarithm of the (rotation-invariant) Laplace kernel exp(-scale |q - k|)."""

    scale: float = 1.0
    held: ClassVar[int] = 1

    def __call__(self, q: Queries, k: Keys) -> Scores:
        return -self.scale * distances(q, k)

    def pull(self, q: Queries, k: Keys, r: Scores) -> Pulled:
        gap = distances(q, k)
        slope = torch.where(gap > 0, -self.scale * r / gap.clamp(min=torch.finfo(gap.dtype).tiny), 0)
        return *_pull_difference(q, k, slope), {}

    def dot(self, q: Queries, k: Keys) -> None:
        return None


@dataclass(frozen=True, eq=False)
class Polynomial:
    """f(q, k) = log (scale q.k + offset)^degree, degree even so that the kernel is nowhere negative.

    Where the kernel is exactly 0 the score is -inf and the weight 0, as if the key were forbidden.
    """

    degree: int = 2
    scale: float | None = None
    offset: float = 1.0
    held: ClassVar[int] = 1

    def _root(self, q: Queries, k: Keys) -> Scores:
        return q @ k.mT * _scale(self.scale, q) + self.offset

    def __call__(self, q: Queries, k: Keys) -> Scores:
        root = self._root(q, k)
        zero = root == 0
        return (self.degree * torch.where(zero, 1, root).abs().log()).masked_fill(zero, -torch.inf)

    def pull(self, q: Queries, k: Keys, r: Scores) -> Pulled:
        root = self._root(q, k)
        zero = root == 0
        slope = torch.where(zero, 0, self.degree * _scale(self.scale, q) * r / torch.where(zero, 1, root))
        return slope @ k, slope.mT @ q, {}

    def dot(self, q: Queries, k: Keys) -> None:
        return None


@dataclass(frozen=True, eq=False)
class Additive:
    """f(q, k) = tanh(q W + k U) . w, the first neural attention (Bahdanau, arXiv:1409.0473).

    W, U map d to a hidden width a (one map, or one a head); w weighs the hidden units.
    """

    W: Float[Tensor, "*h d a"]
    U: Float[Tensor, "*h d a"]
    w: Float[Tensor, "*h a 1"]

    @property
    def held(self) -> int:
        return self.W.shape[-1]

    def _hidden(self, q: Queries, k: Keys) -> Float[Tensor, "b h m n a"]:
        return torch.tanh((q @ self.W.to(q.dtype))[..., :, None, :] + (k @ self.U.to(k.dtype))[..., None, :, :])

    def __call__(self, q: Queries, k: Keys) -> Scores:
        return (self._hidden(q, k) @ self.w.to(q.dtype).unsqueeze(-3)).squeeze(-1)

    def pull(self, q: Queries, k: Keys, r: Scores) -> Pulled:
        t = self._hidden(q, k)
        before = (1 - t * t) * self.w.to(q.dtype).mT.unsqueeze(-3) * r[..., None]
        at_q, at_k = before.sum(-2), before.sum(-3)
        tensors = {
            "W": (q.mT @ at_q).sum_to_size(self.W.shape),
            "U": (k.mT @ at_k).sum_to_size(self.U.shape),
            "w": (t * r[..., None]).sum((-3, -2))[..., None].sum_to_size(self.w.shape),
        }
        return at_q @ self.W.to(q.dtype).mT, at_k @ self.U.to(k.dtype).mT, tensors

    def dot(self, q: Queries, k: Keys) -> None:
        return None


@dataclass(frozen=True, eq=False)
class SoftCap:
    """f(q, k) = cap tanh(score / cap): no score leaves (-cap, cap) (Gemma-2)."""

    score: Score
    cap: float

    def __post_init__(self) -> None:
        if not 0 < self.cap < torch.inf:
            raise RheoscopeError(f"cap must be a positive number, got {self.cap}; type SoftCap(score, 50.0)")

    @property
    def held(self) -> int:
        return self.score.held

    def __call__(self, q: Queries, k: Keys) -> Scores:
        return self.cap * torch.tanh(self.score(q, k) / self.cap)

    def pull(self, q: Queries, k: Keys, r: Scores) -> Pulled:
        dq, dk, tensors = self.score.pull(q, k, r * (1 - (self(q, k) / self.cap).square()))
        return dq, dk, under("score", tensors)

    def dot(self, q: Queries, k: Keys) -> None:
        return None


@dataclass(frozen=True, eq=False)
class Added:
    """f(q, k) + <q', k'>: the last `width` columns of queries and keys are a dot product beside any score of the others."""

    score: Score
    width: int

    @property
    def held(self) -> int:
        return self.score.held

    def _apart(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[..., : -self.width], x[..., -self.width :]

    def __call__(self, q: Queries, k: Keys) -> Scores:
        (own_q, more_q), (own_k, more_k) = self._apart(q), self._apart(k)
        return self.score(own_q, own_k) + more_q @ more_k.mT

    def pull(self, q: Queries, k: Keys, r: Scores) -> Pulled:
        (own_q, more_q), (own_k, more_k) = self._apart(q), self._apart(k)
        dq, dk, tensors = self.score.pull(own_q, own_k, r)
        return torch.cat([dq, r @ more_k], -1), torch.cat([dk, r.mT @ more_q], -1), under("score", tensors)

    def dot(self, q: Queries, k: Keys) -> DotForm | None:
        (own_q, more_q), (own_k, more_k) = self._apart(q), self._apart(k)
        form = self.score.dot(own_q, own_k)
        if form is None or form.scale == 0:
            return None
        return form._replace(q=torch.cat([form.q, more_q / form.scale], -1), k=torch.cat([form.k, more_k], -1))


def distances(a: Float[Tensor, "b h m r"], b: Float[Tensor, "b h n r"]) -> Scores:
    """|a_i - b_j| from the differences themselves: no cancellation, exactly 0 for equal rows, gradient 0 there."""
    return _Distances.apply(a, b)


class _Distances(torch.autograd.Function):
    """cdist with a backward pass that can be differentiated again, as Jacobians of layers need it; its own cannot."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        far = torch.cdist(a.contiguous(), b.contiguous(), compute_mode="donot_use_mm_for_euclid_dist")
        ctx.save_for_backward(a, b, far)
        return far

    @staticmethod
    def backward(ctx: Any, pulled: Tensor) -> tuple[Tensor, Tensor]:
        a, b, far = ctx.saved_tensors
        return _pull_difference(a, b, torch.where(far > 0, pulled / torch.where(far > 0, far, 1), 0))


def _pull_difference(a: Tensor, b: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """sum_ij slope_ij (a_i - b_j), taken to a and, with the other sign, to b."""
    return slope.sum(-1)[..., None] * a - slope @ b, slope.sum(-2)[..., None] * b - slope.mT @ a
