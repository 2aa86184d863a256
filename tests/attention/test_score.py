"""Scores equal their formulas pair by pair, and their derivatives match autograd."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rheoscope.attention.additive import Additive
from rheoscope.attention.distances import pairwise_distances
from rheoscope.attention.feature_maps import Linear, Residual, Tanh, UnitNorm
from rheoscope.attention.kernel_score import Laplace, Polynomial
from rheoscope.attention.normaliser.domain import softmax
from rheoscope.attention.python_functions import ScoreFunction
from rheoscope.attention.score import (
    Distance,
    Gram,
    Relation,
    Score,
    ScorePlusDot,
    SoftCap,
)
from tests.attention.cases import gap, gradients, random, wave

D = 4
B, W, U, w = random(1, D, D), random(2, D, 5), random(3, D, 5), random(4, 5, 1)
MAP = Tanh(random(5, D, 5), random(6, 1, 5), random(7, 5, D))


def phi(x: Tensor) -> Tensor:
    return x + torch.tanh(x @ MAP.W + MAP.b[0]) @ MAP.U


FORMULAS: dict[str, tuple[Score, Callable[[Tensor, Tensor], Tensor]]] = {
    "dot": (Gram(), lambda q, k: q @ k / math.sqrt(D)),
    "dot, given scale": (Gram(scale=-3.0), lambda q, k: -3 * (q @ k)),
    "cosine": (Gram(UnitNorm(), scale=10.0), lambda q, k: 10 * (q @ k) / (q.norm() * k.norm())),
    "bilinear": (Relation(Linear(B)), lambda q, k: q @ B @ k / math.sqrt(D)),
    "metric": (Distance(scale=0.5 / 0.7**2), lambda q, k: -(((q - k) ** 2).sum()) / (2 * 0.7**2)),
    "mahalanobis": (Distance(Linear(B)), lambda q, k: -(q - k) @ (B @ B.T) @ (q - k) / 2),
    "map": (Distance(Residual(MAP), scale=1.0), lambda q, k: -((phi(q) - phi(k)) ** 2).sum()),
    "laplace": (Laplace(0.3), lambda q, k: -0.3 * (q - k).norm()),
    "polynomial": (Polynomial(4, offset=0.5), lambda q, k: ((q @ k / math.sqrt(D) + 0.5) ** 4).log()),
    "additive": (Additive(W, U, w), lambda q, k: torch.tanh(q @ W + k @ U) @ w[:, 0]),
    "plus dot": (ScorePlusDot(Gram(), 1), lambda q, k: q[:-1] @ k[:-1] / math.sqrt(D - 1) + q[-1] * k[-1]),
    "metric plus dot": (ScorePlusDot(Distance(), 2), lambda q, k: -((q - k)[:2] ** 2).sum() / 2 + q[2:] @ k[2:]),
    "distance plus dot": (ScorePlusDot(Laplace(0.3), 2), lambda q, k: -0.3 * (q - k)[:2].norm() + q[2:] @ k[2:]),
    "function": (ScoreFunction(wave), lambda q, k: 2 * torch.sin(q @ k) + q[0] * k[-1]),
    "soft cap": (SoftCap(Gram(), 0.5), lambda q, k: 0.5 * torch.tanh(q @ k / math.sqrt(D) / 0.5)),
}
NO_DOT = {"function", "laplace", "distance plus dot", "polynomial", "additive", "soft cap"}


def random_qk(m: int = 3, n: int = 4) -> tuple[Tensor, Tensor]:
    return random(11, 2, 2, m, D), random(12, 2, 2, n, D)


@pytest.mark.parametrize("name", FORMULAS)
def test_score_equals_its_formula(name: str) -> None:
    score, formula = FORMULAS[name]
    q, k = random_qk()
    s = score(q, k)
    assert s.shape == (2, 2, 3, 4)
    for b, h, i, j in torch.cartesian_prod(*(torch.arange(size) for size in s.shape)).tolist():
        assert float(s[b, h, i, j]) == pytest.approx(float(formula(q[b, h, i], k[b, h, j])), abs=1e-12)


@pytest.mark.parametrize("name", FORMULAS)
def test_pullback_matches_autograd(name: str) -> None:
    score, _ = FORMULAS[name]
    q, k = random_qk()
    r = random(13, 2, 2, 3, 4)
    dq, dk, tensor_grads = score.pullback(q, k, r)
    expected = gradients(lambda score, q, k, v: score(q, k), score, (q, k, k), r)  # type: ignore[arg-type]
    computed = {"q": dq, "k": dk, **tensor_grads}
    assert set(computed) == set(expected) - {"v"}
    assert max(gap(computed[path], expected[path]) for path in computed) < 1e-12


@pytest.mark.parametrize("name", FORMULAS)
def test_dot_form_reproduces_the_score(name: str) -> None:
    score, _ = FORMULAS[name]
    form = score.dot_form(*random_qk())
    assert (form is None) == (name in NO_DOT)
    if form is not None:
        assert gap(form.scores(), score(*random_qk())) < 1e-12


def test_metric_far_from_the_origin_is_exact() -> None:
    """|q|^2 - 2 q.k + |k|^2 in float32 would be off by 60 here; differences are exact."""
    q, k = (x.float().round() for x in random_qk())
    assert torch.equal(Distance()(q + 2.0**14, k + 2.0**14), Distance()(q, k))


@pytest.mark.parametrize("score", [Distance(), Laplace(), Distance(Residual(MAP))])
def test_score_and_gradient_are_zero_at_distance_zero(score: Score) -> None:
    q, _ = random_qk()
    s = score(q, q)
    assert not bool(s.diagonal(dim1=-2, dim2=-1).any())
    dq, dk, _ = score.pullback(q, q, torch.eye(3, dtype=q.dtype).expand_as(s))
    assert float(dq.abs().max()) < 1e-12
    assert float(dk.abs().max()) < 1e-12
    leaf = q.clone().requires_grad_()
    score(leaf, leaf).diagonal(dim1=-2, dim2=-1).sum().backward()
    assert float(leaf.grad.abs().max()) < 1e-12  # type: ignore[union-attr]


def test_kernel_value_of_zero_masks_the_key() -> None:
    """Where (q.k + c)^2 = 0, the score is -inf and the weight exactly 0, with finite gradients."""
    score, q = Polynomial(2, scale=1.0), torch.tensor([[[[1.0, 0.0]]]], dtype=torch.float64, requires_grad=True)
    k = torch.tensor([[[[-1.0, 3.0], [1.0, 0.0]]]], dtype=torch.float64)
    a = softmax(score(q, k))
    assert a.flatten().tolist() == [0.0, 1.0]
    a[..., 0].sum().backward()
    assert bool(q.grad.isfinite().all())  # type: ignore[union-attr]
    assert all(
        bool(x.isfinite().all()) for x in score.pullback(q.detach(), k, torch.ones(1, 1, 1, 2, dtype=q.dtype))[:2]
    )


def test_numbers_per_pair() -> None:
    assert Additive(W, U, w).numbers_per_pair == 5
    assert SoftCap(Additive(W, U, w), 1.0).numbers_per_pair == 5
    assert {FORMULAS[name][0].numbers_per_pair for name in FORMULAS if name != "additive"} == {1}


def test_soft_cap_bounds_the_scores() -> None:
    q, k = random_qk()
    assert float(SoftCap(Gram(), 2.0)(1e3 * q, 1e3 * k).abs().max()) <= 2.0


def test_pairwise_distances_equal_norms_of_differences() -> None:
    q, k = random_qk()
    assert gap(pairwise_distances(q, k), (q[..., :, None, :] - k[..., None, :, :]).norm(dim=-1)) < 1e-14


def test_pairwise_distances_are_twice_differentiable_and_zero_for_equal_points() -> None:
    a, b = random(1, 1, 2, 4, D).requires_grad_(), random(2, 1, 2, 3, D).requires_grad_()
    assert torch.autograd.gradcheck(pairwise_distances, (a, b))
    assert torch.autograd.gradgradcheck(pairwise_distances, (a, b))
    distances = pairwise_distances(a, a.detach())
    assert not distances.diagonal(0, -2, -1).any()
    gradient = torch.autograd.grad(distances.diagonal(0, -2, -1).sum(), a)[0]
    assert not gradient.any()


@pytest.mark.parametrize(
    "score",
    [
        Additive(W, random(14, 3, 5), w),
        Relation(Linear(random(15, D, 3))),
        Relation(Linear(random(16, D, 2)), Tanh(random(17, 3, 5), random(18, 1, 5), random(19, 5, 2))),
        SoftCap(Relation(Linear(random(15, D, 3))), 0.8),
        ScoreFunction(lambda q, k: q[..., :3] @ k.mT),
    ],
    ids=["additive", "bilinear", "relation", "soft cap", "function"],
)
def test_queries_and_keys_may_differ_in_width(score: Score) -> None:
    """Single pairs score the same as in a batch, and the closed-form gradient matches autograd."""
    (q, _), k, r = random_qk(), random(12, 2, 2, 4, 3), random(13, 2, 2, 3, 4)
    score.check_shapes(q, k)
    s = score(q, k)
    for i, j in ((0, 0), (2, 3), (1, 2)):
        assert gap(score(q[..., i : i + 1, :], k[..., j : j + 1, :]), s[..., i : i + 1, j : j + 1]) < 1e-12
    dq, dk, tensor_grads = score.pullback(q, k, r)
    expected = gradients(lambda score, q, k, v: score(q, k), score, (q, k, k), r)  # type: ignore[arg-type]
    assert max(gap(x, expected[path]) for path, x in {"q": dq, "k": dk, **tensor_grads}.items()) < 1e-12


def test_default_scale_uses_the_key_width() -> None:
    """The scale is 1/√d_k, as in Definition 4; only B depends on the width of the queries."""
    (q, _), k, B = random_qk(), random(12, 2, 2, 4, 3), random(15, D, 3)
    assert gap(Relation(Linear(B))(q, k), q @ B @ k.mT / math.sqrt(3)) < 1e-12
