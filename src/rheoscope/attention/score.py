"""Scores f(q, k): inner products, relations and distances of mapped tokens, with optional soft caps.

Nearly every score in the literature is an inner product or a distance of mapped tokens:

    Gram(phi)           <phi(q), phi(k)> scale        scaled dot, cosine, symmetric relation, linear
    Relation(phi, psi)  <phi(q), psi(k)> scale        bilinear, relation
    Distance(phi)       -scale |phi(q) - phi(k)|^2    metric, Mahalanobis, RBF, metric map

The exceptions are `Laplace` and `Polynomial` (in `kernel_score.py`) and `Additive` (in `additive.py`).
`python_functions.py` wraps any Python function as a score. `SoftCap` wraps any score.

A score is a frozen dataclass. `score(q, k)` evaluates the formula. `score.pullback(q, k, r)` maps the gradient r of the
scores to the gradients of q, k and the score's tensors, in closed form. `score.dot_form(q, k)` writes the same scores as
a dot product plus one bias per query and per key, or returns None without such a form. With it, a metric runs exactly on
a fused kernel.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from rheoscope.attention import gpu_math
from rheoscope.attention.distances import difference_pullback, pairwise_distances
from rheoscope.attention.dot_form import DotForm, DotMaps, PointwiseForm
from rheoscope.attention.feature_maps import Feature, Identity, add_gradients, prefix_keys
from rheoscope.attention.part import MechanismPart
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import Keys, Queries, RheoscopeError, Scores

Pullback = tuple[Tensor, Tensor, dict[str, Tensor]]


class Flops(NamedTuple):
    """FLOPs for one pair of mapped tokens, and for mapping one query and one key."""

    per_pair: int
    per_query: int = 0
    per_key: int = 0


class Score(MechanismPart, ABC):
    """A score f(q, k) with its pullback and, if it exists, its dot form."""

    @abstractmethod
    def __call__(self, q: Tensor, k: Tensor) -> Tensor: ...

    @abstractmethod
    def pullback(self, q: Tensor, k: Tensor, r: Tensor) -> Pullback: ...

    def pullback_queries(self, q: Tensor, k: Tensor, r: Tensor) -> Tensor:
        """The gradient of the queries alone."""
        return self.pullback(q, k, r)[0]

    def dot_maps(self, width: int) -> DotMaps | None:
        """The score as a dot product of mapped tokens of this width; None if it is not one."""
        return None

    def pointwise_form(self, width: int) -> PointwiseForm | None:
        """The score as a function of a dot product of mapped tokens; None if it is not one."""
        dot_maps = self.dot_maps(width)
        return None if dot_maps is None else PointwiseForm(dot_maps)

    def dot_form(self, q: Tensor, k: Tensor) -> DotForm | None:
        dot_maps = self.dot_maps(k.shape[-1])
        return None if dot_maps is None else dot_maps.dot_form(q, k)

    def check_shapes(self, q: Tensor, k: Tensor) -> None:
        """Raise for queries and keys that the score cannot compare; most scores need equal widths."""
        if q.shape[-1] != k.shape[-1]:
            raise RheoscopeError(
                Message(
                    "{score} needs q and k of the same width, got {q} and {k}",
                    score=type(self).__name__,
                    q=q.shape[-1],
                    k=k.shape[-1],
                ),
                Advice(f"rs.mechanism('bilinear', dim={q.shape[-1]}, key_dim={k.shape[-1]})"),
            )

    @property
    def no_dot_form_reason(self) -> str:
        """Why a fused kernel cannot compute a score that has no dot form."""
        if torch.compiler.is_compiling():  # Dynamo cannot trace a Message
            return "the score is not a dot product"
        return Message("the score {score} cannot be written as a dot product", score=type(self).__name__)

    @property
    def is_opaque(self) -> bool:
        """Whether it may read tensors that are not its fields, as a Python function may."""
        return False

    @property
    def numbers_per_pair(self) -> int:
        """How many intermediate numbers a call stores per pair (q, k); lowerings choose block sizes from it."""
        return 1

    @property
    def is_scaled_dot(self) -> bool:
        """Whether it is scale q.k of unmapped tokens."""
        return False

    @property
    def without_cap(self) -> "Score":
        """The score without its cap."""
        return self

    def with_dot_columns(self, width: int) -> "Score":
        """The same score of wider tokens; their last `width` columns add a dot product inside any cap."""
        return ScorePlusDot(self, width)

    def with_model_scale(self, scale: float) -> "Score":
        """The score inside a model that multiplies dot products by `scale`; a score with its own temperature keeps it."""
        raise self.missing_method_error("with_model_scale", Message("its form under a model's scale"))

    @property
    def bilinear_maps(self) -> tuple[Feature, Feature] | None:
        """phi and psi with f(q, k) = c phi(q) psi(k)^T + terms of q alone + terms of k alone, before a cap; None if none exist."""
        raise self.missing_method_error("bilinear_maps", Message("whether it is a bilinear form of mapped tokens"))

    @property
    def is_linear_in_keys(self) -> bool:
        """Whether a vector added to every key adds the same number to all scores of a query."""
        raise self.missing_method_error("is_linear_in_keys", Message("whether it is linear in the keys"))

    def tanh_form(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """a (b, h, m, x), c (b, h, n, x) and w (h, x) or (1, x) if f = w . tanh(a_i + c_j) over hidden units; else None."""
        return None

    @property
    def elementwise_name(self) -> str:
        """The kernel name of the elementwise map whose unscaled inner product it is; empty if there is none."""
        return ""

    @property
    def distance_slope(self) -> float:
        """The slope c if the score is -c |q - k|; 0 otherwise."""
        return 0.0

    def flops(self, d: int) -> Flops:
        """FLOPs of the matrix products in the definition, for tokens of width d."""
        raise self.missing_method_error("flops", Message("its FLOPs"))


def _scale_or_default(scale: float | None, width: int) -> float:
    return width**-0.5 if scale is None else scale


@dataclass(frozen=True, eq=False)
class Gram(Score):
    """f(q, k) = scale <phi(q), phi(k)>: one map for both sides, so f is symmetric and its Gram matrix is PSD.

    `scale=None` is 1/sqrt(d_k). `Gram()` is scaled dot-product attention (arXiv:1706.03762).
    """

    phi: Feature = Identity()
    scale: float | None = None

    def __call__(self, q: Queries, k: Keys) -> Scores:
        return self.phi(q) @ self.phi(k).mT * _scale_or_default(self.scale, k.shape[-1])

    def pullback(self, q: Queries, k: Keys, r: Scores) -> Pullback:
        scale = _scale_or_default(self.scale, k.shape[-1])
        dq, map_grads_q = self.phi.pullback(q, scale * (r @ self.phi(k)))
        dk, map_grads_k = self.phi.pullback(k, scale * (r.mT @ self.phi(q)))
        return dq, dk, prefix_keys("phi", add_gradients(map_grads_q, map_grads_k))

    def dot_maps(self, width: int) -> DotMaps:
        return DotMaps(self.phi, self.phi, _scale_or_default(self.scale, width))

    def pullback_queries(self, q: Queries, k: Keys, r: Scores) -> Queries:
        return self.phi.pullback(q, _scale_or_default(self.scale, k.shape[-1]) * (r @ self.phi(k)))[0]

    @property
    def is_scaled_dot(self) -> bool:
        return self.phi.is_identity

    @property
    def is_linear_in_keys(self) -> bool:
        return self.phi.is_linear

    @property
    def bilinear_maps(self) -> tuple[Feature, Feature]:
        return self.phi, self.phi

    def with_model_scale(self, scale: float) -> "Gram":
        return replace(self, scale=scale) if self.scale is None else self

    @property
    def elementwise_name(self) -> str:
        return self.phi.elementwise_name if self.scale == 1 else ""

    def select_heads(self, heads: list[int]) -> "Gram":
        return replace(self, phi=self.phi.select_heads(heads))

    def flops(self, d: int) -> Flops:
        return Flops(2 * self.phi.output_width(d), self.phi.flops, self.phi.flops)


@dataclass(frozen=True, eq=False)
class Relation(Score):
    """f(q, k) = scale <phi(q), psi(k)>: two maps, any relation, not symmetric (arXiv:2402.08856).

    Queries and keys may differ in width; phi and psi map them to a common width.
    """

    phi: Feature
    psi: Feature = Identity()
    scale: float | None = None

    def __call__(self, q: Queries, k: Keys) -> Scores:
        return self.phi(q) @ self.psi(k).mT * _scale_or_default(self.scale, k.shape[-1])

    def pullback(self, q: Queries, k: Keys, r: Scores) -> Pullback:
        scale = _scale_or_default(self.scale, k.shape[-1])
        dq, map_grads_q = self.phi.pullback(q, scale * (r @ self.psi(k)))
        dk, map_grads_k = self.psi.pullback(k, scale * (r.mT @ self.phi(q)))
        return dq, dk, prefix_keys("phi", map_grads_q) | prefix_keys("psi", map_grads_k)

    def check_shapes(self, q: Tensor, k: Tensor) -> None:
        if self.phi.is_identity and self.psi.is_identity:
            super().check_shapes(q, k)

    def dot_maps(self, width: int) -> DotMaps:
        return DotMaps(self.phi, self.psi, _scale_or_default(self.scale, width))

    @property
    def is_linear_in_keys(self) -> bool:
        return self.psi.is_linear

    @property
    def bilinear_maps(self) -> tuple[Feature, Feature]:
        return self.phi, self.psi

    def with_model_scale(self, scale: float) -> "Relation":
        return replace(self, scale=scale) if self.scale is None else self

    def select_heads(self, heads: list[int]) -> "Relation":
        return replace(self, phi=self.phi.select_heads(heads), psi=self.psi.select_heads(heads))

    def flops(self, d: int) -> Flops:
        return Flops(2 * self.phi.output_width(d), self.phi.flops, self.psi.flops)


@dataclass(frozen=True, eq=False)
class Distance(Score):
    """f(q, k) = -scale |phi(q) - phi(k)|^2: relevance decreases with distance.

    scale = 1/(2 sigma^2) with phi = identity is the Gaussian metric; phi(x) = x L is Mahalanobis with P = L L^T;
    phi = x + tanh(x W + b) U is the metric-attention of arXiv:2412.18288. Under softmax the term in |phi(q)|^2 is
    constant along a row and cancels: a metric is a dot product with the per-key bias -scale |phi(k)|^2.
    """

    phi: Feature = Identity()
    scale: float = 0.5

    is_linear_in_keys = False

    def __call__(self, q: Queries, k: Keys) -> Scores:
        return -self.scale * pairwise_distances(self.phi(q), self.phi(k)).square()

    def pullback(self, q: Queries, k: Keys, r: Scores) -> Pullback:
        mapped_q, mapped_k = self.phi(q), self.phi(k)
        grad_mapped_q, grad_mapped_k = difference_pullback(mapped_q, mapped_k, -2 * self.scale * r)
        dq, map_grads_q = self.phi.pullback(q, grad_mapped_q)
        dk, map_grads_k = self.phi.pullback(k, grad_mapped_k)
        return dq, dk, prefix_keys("phi", add_gradients(map_grads_q, map_grads_k))

    def dot_maps(self, width: int) -> DotMaps:
        return DotMaps(self.phi, self.phi, 2 * self.scale, self.scale)

    @property
    def bilinear_maps(self) -> tuple[Feature, Feature]:
        return self.phi, self.phi

    def with_model_scale(self, scale: float) -> "Distance":
        """-scale/2 |q - k|^2 = scale q.k plus terms of q alone and of k alone."""
        return replace(self, scale=scale / 2)

    def select_heads(self, heads: list[int]) -> "Distance":
        return replace(self, phi=self.phi.select_heads(heads))

    def flops(self, d: int) -> Flops:
        return Flops(2 * self.phi.output_width(d), self.phi.flops, self.phi.flops)


@dataclass(frozen=True, eq=False)
class SoftCap(Score):
    """f(q, k) = cap tanh(score / cap): scores stay within (-cap, cap) (Gemma-2)."""

    score: Score
    cap: float

    is_linear_in_keys = False

    def __post_init__(self) -> None:
        if not 0 < self.cap < torch.inf:
            raise RheoscopeError(
                Message("cap must be a positive number, got {received}", received=self.cap),
                Advice("SoftCap(score, 50.0)"),
            )

    @property
    def numbers_per_pair(self) -> int:
        return self.score.numbers_per_pair

    @property
    def is_opaque(self) -> bool:
        return self.score.is_opaque

    def check_shapes(self, q: Tensor, k: Tensor) -> None:
        self.score.check_shapes(q, k)

    def __call__(self, q: Queries, k: Keys) -> Scores:
        return self.cap * torch.tanh(self.score(q, k) / self.cap)

    def pullback(self, q: Queries, k: Keys, r: Scores) -> Pullback:
        dq, dk, tensor_grads = self.score.pullback(q, k, r * (1 - (self(q, k) / self.cap).square()))
        return dq, dk, prefix_keys("score", tensor_grads)

    def pointwise_form(self, width: int) -> PointwiseForm | None:
        inner = self.score.pointwise_form(width)
        if inner is None:
            return None
        function, cap = inner.function, self.cap
        return PointwiseForm(
            inner.dot_maps, lambda s: cap * gpu_math.tanh((s if function is None else function(s)) / cap)
        )

    @property
    def without_cap(self) -> Score:
        return self.score.without_cap

    def with_dot_columns(self, width: int) -> "SoftCap":
        return replace(self, score=self.score.with_dot_columns(width))

    @property
    def bilinear_maps(self) -> tuple[Feature, Feature] | None:
        return self.score.bilinear_maps

    def with_model_scale(self, scale: float) -> "SoftCap":
        return replace(self, score=self.score.with_model_scale(scale))

    def select_heads(self, heads: list[int]) -> "SoftCap":
        return replace(self, score=self.score.select_heads(heads))

    def flops(self, d: int) -> Flops:
        return self.score.flops(d)


@dataclass(frozen=True, eq=False)
class ScorePlusDot(Score):
    """f(q, k) + <q', k'>: any score of the first columns plus a dot product of the last `width` columns."""

    score: Score
    width: int

    bilinear_maps = None
    is_linear_in_keys = False

    @property
    def numbers_per_pair(self) -> int:
        return self.score.numbers_per_pair

    @property
    def is_opaque(self) -> bool:
        return self.score.is_opaque

    def check_shapes(self, q: Tensor, k: Tensor) -> None:
        self.score.check_shapes(self._split_columns(q)[0], self._split_columns(k)[0])

    def _split_columns(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[..., : -self.width], x[..., -self.width :]

    def __call__(self, q: Queries, k: Keys) -> Scores:
        (score_q, dot_q), (score_k, dot_k) = self._split_columns(q), self._split_columns(k)
        return self.score(score_q, score_k) + dot_q @ dot_k.mT

    def pullback(self, q: Queries, k: Keys, r: Scores) -> Pullback:
        (score_q, dot_q), (score_k, dot_k) = self._split_columns(q), self._split_columns(k)
        dq, dk, tensor_grads = self.score.pullback(score_q, score_k, r)
        return torch.cat([dq, r @ dot_k], -1), torch.cat([dk, r.mT @ dot_q], -1), prefix_keys("score", tensor_grads)

    def dot_form(self, q: Queries, k: Keys) -> DotForm | None:
        (score_q, dot_q), (score_k, dot_k) = self._split_columns(q), self._split_columns(k)
        form = self.score.dot_form(score_q, score_k)
        if form is None or form.scale == 0:
            return None
        return form._replace(q=torch.cat([form.q, dot_q / form.scale], -1), k=torch.cat([form.k, dot_k], -1))

    def with_model_scale(self, scale: float) -> "ScorePlusDot":
        return replace(self, score=self.score.with_model_scale(scale))

    def select_heads(self, heads: list[int]) -> "ScorePlusDot":
        return replace(self, score=self.score.select_heads(heads))

    def flops(self, d: int) -> Flops:
        inner_flops = self.score.flops(d - self.width)
        return inner_flops._replace(per_pair=inner_flops.per_pair + 2 * self.width)
