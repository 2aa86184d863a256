"""How relevant is key k to query q: every score f(q, k) of the literature, side by side.

Nearly all of them are an inner product or a distance of mapped tokens, so two shapes carry the room:

    Gram(phi)           <phi(q), phi(k)> scale        scaled dot, cosine, symmetric relation, linear
    Relation(phi, psi)  <phi(q), psi(k)> scale        bilinear, relation
    Distance(phi)       -scale |phi(q) - phi(k)|^2    metric, Mahalanobis, RBF, metric map

and `Laplace`, `Polynomial` (in `kernel_score.py`) and `Additive` (in `additive.py`) stand alone; `function.py` makes a score of any Python
function. `SoftCap` wraps any of them.

A score is a frozen value: `score(q, k)` is the formula; `score.pull(q, k, r)` carries the gradient r of the scores back
to q, k and the score's own tensors in closed form; `score.dot(q, k)` gives the same scores as an ordinary dot product
plus a bias per query and per key, or None where no such form exists: it lets a metric run on a fused kernel, exactly.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from rheoscope.attention import gpu_math
from rheoscope.attention.distances import distances, pull_difference
from rheoscope.attention.dot_form import DotForm, Fold, Pointwise
from rheoscope.attention.feature_maps import Feature, Identity, added, under
from rheoscope.attention.part import Part
from rheoscope.shapes import Keys, Queries, RheoscopeError, Scores

Pulled = tuple[Tensor, Tensor, dict[str, Tensor]]


class Flops(NamedTuple):
    """FLOPs for one pair of mapped tokens, and for mapping one query and one key."""

    pair: int
    query: int = 0
    key: int = 0


class Score(Part, ABC):
    """f(q, k) with its pull-back and, where there is one, its dot form."""

    @abstractmethod
    def __call__(self, q: Tensor, k: Tensor) -> Tensor: ...

    @abstractmethod
    def pull(self, q: Tensor, k: Tensor, r: Tensor) -> Pulled: ...

    def pull_queries(self, q: Tensor, k: Tensor, r: Tensor) -> Tensor:
        """The part of `pull` that goes to the queries."""
        return self.pull(q, k, r)[0]

    def fold(self, width: int) -> Fold | None:
        """The score of tokens of this width as a dot product of mapped ones; None where it is none."""
        return None

    def pointwise(self, width: int) -> Pointwise | None:
        """The score as a function of a dot product of mapped tokens; None where it is none."""
        fold = self.fold(width)
        return None if fold is None else Pointwise(fold)

    def dot(self, q: Tensor, k: Tensor) -> DotForm | None:
        fold = self.fold(k.shape[-1])
        return None if fold is None else fold.form(q, k)

    def fit(self, q: Tensor, k: Tensor) -> None:
        """Refuse queries and keys that it cannot compare; most scores compare them number by number."""
        if q.shape[-1] != k.shape[-1]:
            raise RheoscopeError(
                f"q and k must share their width under {type(self).__name__}, got {q.shape[-1]} and {k.shape[-1]}; project "
                f"one of them first, or type mechanism('bilinear', dim={q.shape[-1]}, key_dim={k.shape[-1]})"
            )

    @property
    def why_no_dot(self) -> str:
        """Why a fused kernel cannot compute it, where it has no dot form."""
        return f"the score {type(self).__name__} is no dot product in disguise"

    @property
    def opaque(self) -> bool:
        """Whether it may read tensors that are none of its fields, as a Python function may."""
        return False

    @property
    def held(self) -> int:
        """How many numbers a call keeps for one pair (q, k): a lowering sizes its blocks by it."""
        return 1

    @property
    def plain(self) -> bool:
        """Whether it is scale q.k of the tokens as they are."""
        return False

    @property
    def uncapped(self) -> "Score":
        """The score before a cap is put on it."""
        return self

    def with_columns(self, width: int) -> "Score":
        """The same score of wider tokens, whose last `width` columns add a dot product to it, inside a cap."""
        return Added(self, width)

    def scaled(self, by: float) -> "Score":
        """As a model has it that multiplies dot products by `by`; a score with a temperature of its own keeps that."""
        raise self.untold("scaled", "what a model's scaling of dot products is to it")

    @property
    def bilinear(self) -> tuple[Feature, Feature] | None:
        """phi and psi with f(q, k) = c phi(q) psi(k)^T + terms of q alone + terms of k alone, before a cap; None where there are none."""
        raise self.untold("bilinear", "whether it is a bilinear form of mapped tokens")

    @property
    def linear_in_keys(self) -> bool:
        """Whether a vector added to every key adds the same number to all scores of a query."""
        raise self.untold("linear_in_keys", "whether it is linear in its keys")

    def tanh(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """a (b, h, m, x), c (b, h, n, x) and w (h, x) or (1, x) where it is the sum w . tanh(a_i + c_j) over hidden units."""
        return None

    @property
    def elementwise(self) -> str:
        """The map, by the name that kernels know, of which it is the bare inner product; nothing where it is not one."""
        return ""

    @property
    def per_distance(self) -> float:
        """What a score falls by for every unit of |q - k|, where it is that distance and nothing else; 0 where it is not."""
        return 0.0

    def flops(self, d: int) -> Flops:
        """What the matrix products of the definition cost, for tokens of width d."""
        raise self.untold("flops", "what it costs")


def _scale(scale: float | None, width: int) -> float:
    return width**-0.5 if scale is None else scale


@dataclass(frozen=True, eq=False)
class Gram(Score):
    """f(q, k) = scale <phi(q), phi(k)>: one map for both sides, so f is symmetric and its Gram matrix is PSD.

    `scale=None` is 1/sqrt(d_k). `Gram()` is scaled dot-product attention (arXiv:1706.03762).
    """

    phi: Feature = Identity()
    scale: float | None = None

    def __call__(self, q: Queries, k: Keys) -> Scores:
        return self.phi(q) @ self.phi(k).mT * _scale(self.scale, k.shape[-1])

    def pull(self, q: Queries, k: Keys, r: Scores) -> Pulled:
        c = _scale(self.scale, k.shape[-1])
        dq, from_q = self.phi.pull(q, c * (r @ self.phi(k)))
        dk, from_k = self.phi.pull(k, c * (r.mT @ self.phi(q)))
        return dq, dk, under("phi", added(from_q, from_k))

    def fold(self, width: int) -> Fold:
        return Fold(self.phi, self.phi, _scale(self.scale, width))

    def pull_queries(self, q: Queries, k: Keys, r: Scores) -> Queries:
        return self.phi.pull(q, _scale(self.scale, k.shape[-1]) * (r @ self.phi(k)))[0]

    @property
    def plain(self) -> bool:
        return self.phi.identity

    @property
    def linear_in_keys(self) -> bool:
        return self.phi.linear

    @property
    def bilinear(self) -> tuple[Feature, Feature]:
        return self.phi, self.phi

    def scaled(self, by: float) -> "Gram":
        return replace(self, scale=by) if self.scale is None else self

    @property
    def elementwise(self) -> str:
        return self.phi.elementwise if self.scale == 1 else ""

    def of_heads(self, some: list[int]) -> "Gram":
        return replace(self, phi=self.phi.of_heads(some))

    def flops(self, d: int) -> Flops:
        return Flops(2 * self.phi.width(d), self.phi.flops, self.phi.flops)


@dataclass(frozen=True, eq=False)
class Relation(Score):
    """f(q, k) = scale <phi(q), psi(k)>: two maps, any relation, not symmetric (arXiv:2402.08856).

    Queries and keys may differ in width: phi and psi bring them to one.
    """

    phi: Feature
    psi: Feature = Identity()
    scale: float | None = None

    def __call__(self, q: Queries, k: Keys) -> Scores:
        return self.phi(q) @ self.psi(k).mT * _scale(self.scale, k.shape[-1])

    def pull(self, q: Queries, k: Keys, r: Scores) -> Pulled:
        c = _scale(self.scale, k.shape[-1])
        dq, from_q = self.phi.pull(q, c * (r @ self.psi(k)))
        dk, from_k = self.psi.pull(k, c * (r.mT @ self.phi(q)))
        return dq, dk, under("phi", from_q) | under("psi", from_k)

    def fit(self, q: Tensor, k: Tensor) -> None:
        if self.phi.identity and self.psi.identity:
            super().fit(q, k)

    def fold(self, width: int) -> Fold:
        return Fold(self.phi, self.psi, _scale(self.scale, width))

    @property
    def linear_in_keys(self) -> bool:
        return self.psi.linear

    @property
    def bilinear(self) -> tuple[Feature, Feature]:
        return self.phi, self.psi

    def scaled(self, by: float) -> "Relation":
        return replace(self, scale=by) if self.scale is None else self

    def of_heads(self, some: list[int]) -> "Relation":
        return replace(self, phi=self.phi.of_heads(some), psi=self.psi.of_heads(some))

    def flops(self, d: int) -> Flops:
        return Flops(2 * self.phi.width(d), self.phi.flops, self.psi.flops)


@dataclass(frozen=True, eq=False)
class Distance(Score):
    """f(q, k) = -scale |phi(q) - phi(k)|^2: relevance is nearness.

    scale = 1/(2 sigma^2) with phi = identity is the Gaussian metric; phi(x) = x L is Mahalanobis with P = L L^T;
    phi = x + tanh(x W + b) U is the metric-attention of arXiv:2412.18288. Under softmax the term in |phi(q)|^2 is
    constant along a row and cancels: a metric is a dot product with the per-key bias -scale |phi(k)|^2.
    """

    phi: Feature = Identity()
    scale: float = 0.5

    linear_in_keys = False

    def __call__(self, q: Queries, k: Keys) -> Scores:
        return -self.scale * distances(self.phi(q), self.phi(k)).square()

    def pull(self, q: Queries, k: Keys, r: Scores) -> Pulled:
        a, b = self.phi(q), self.phi(k)
        da, db = pull_difference(a, b, -2 * self.scale * r)
        dq, from_q = self.phi.pull(q, da)
        dk, from_k = self.phi.pull(k, db)
        return dq, dk, under("phi", added(from_q, from_k))

    def fold(self, width: int) -> Fold:
        return Fold(self.phi, self.phi, 2 * self.scale, self.scale)

    @property
    def bilinear(self) -> tuple[Feature, Feature]:
        return self.phi, self.phi

    def scaled(self, by: float) -> "Distance":
        """-by/2 |q - k|^2 = by q.k and terms of q alone and of k alone."""
        return replace(self, scale=by / 2)

    def of_heads(self, some: list[int]) -> "Distance":
        return replace(self, phi=self.phi.of_heads(some))

    def flops(self, d: int) -> Flops:
        return Flops(2 * self.phi.width(d), self.phi.flops, self.phi.flops)


@dataclass(frozen=True, eq=False)
class SoftCap(Score):
    """f(q, k) = cap tanh(score / cap): no score leaves (-cap, cap) (Gemma-2)."""

    score: Score
    cap: float

    linear_in_keys = False

    def __post_init__(self) -> None:
        if not 0 < self.cap < torch.inf:
            raise RheoscopeError(f"cap must be a positive number, got {self.cap}; type SoftCap(score, 50.0)")

    @property
    def held(self) -> int:
        return self.score.held

    @property
    def opaque(self) -> bool:
        return self.score.opaque

    def fit(self, q: Tensor, k: Tensor) -> None:
        self.score.fit(q, k)

    def __call__(self, q: Queries, k: Keys) -> Scores:
        return self.cap * torch.tanh(self.score(q, k) / self.cap)

    def pull(self, q: Queries, k: Keys, r: Scores) -> Pulled:
        dq, dk, tensors = self.score.pull(q, k, r * (1 - (self(q, k) / self.cap).square()))
        return dq, dk, under("score", tensors)

    def pointwise(self, width: int) -> Pointwise | None:
        inner = self.score.pointwise(width)
        if inner is None:
            return None
        of, cap = inner.of, self.cap
        return Pointwise(inner.fold, lambda s: cap * gpu_math.tanh((s if of is None else of(s)) / cap))

    @property
    def uncapped(self) -> Score:
        return self.score.uncapped

    def with_columns(self, width: int) -> "SoftCap":
        return replace(self, score=self.score.with_columns(width))

    @property
    def bilinear(self) -> tuple[Feature, Feature] | None:
        return self.score.bilinear

    def scaled(self, by: float) -> "SoftCap":
        return replace(self, score=self.score.scaled(by))

    def of_heads(self, some: list[int]) -> "SoftCap":
        return replace(self, score=self.score.of_heads(some))

    def flops(self, d: int) -> Flops:
        return self.score.flops(d)


@dataclass(frozen=True, eq=False)
class Added(Score):
    """f(q, k) + <q', k'>: the last `width` columns of queries and keys are a dot product beside any score of the others."""

    score: Score
    width: int

    bilinear = None
    linear_in_keys = False

    @property
    def held(self) -> int:
        return self.score.held

    @property
    def opaque(self) -> bool:
        return self.score.opaque

    def fit(self, q: Tensor, k: Tensor) -> None:
        self.score.fit(self._apart(q)[0], self._apart(k)[0])

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

    def scaled(self, by: float) -> "Added":
        return replace(self, score=self.score.scaled(by))

    def of_heads(self, some: list[int]) -> "Added":
        return replace(self, score=self.score.of_heads(some))

    def flops(self, d: int) -> Flops:
        own = self.score.flops(d - self.width)
        return own._replace(pair=own.pair + 2 * self.width)
