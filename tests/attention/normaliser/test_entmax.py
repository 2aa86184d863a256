"""Entmax has known values and satisfies its optimality conditions; test_outside.py compares the package `entmax`."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rheoscope.attention.normaliser.domain import softmax
from rheoscope.attention.normaliser.entmax import Entmax, bisection_threshold, entmax, newton_threshold
from tests.attention.cases import gap, random


def row(*s: float) -> torch.Tensor:
    return torch.tensor([[[s]]], dtype=torch.float64)


def test_known_values() -> None:
    assert entmax(row(0.0, 0.0), 2.0).flatten().tolist() == [0.5, 0.5]
    assert entmax(row(1.0, 0.5, -1.0), 2.0).flatten().tolist() == pytest.approx([0.75, 0.25, 0.0], abs=1e-15)
    assert entmax(row(5.0, 0.0), 1.5).flatten().tolist() == [1.0, 0.0]
    # alpha 1.5 on (s, 0): a = (x - t)^2, x = s/2; for s = 1: t = (1 - sqrt(7)) / 4
    t = (1 - 7**0.5) / 4
    assert entmax(row(1.0, 0.0), 1.5).flatten().tolist() == pytest.approx([(0.5 - t) ** 2, t**2], abs=1e-15)


def test_entmax_tends_to_softmax() -> None:
    s = random(1, 2, 2, 3, 5)
    gaps = [gap(entmax(s, alpha), softmax(s)) for alpha in (1.5, 1.1, 1.01)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 0.01


@settings(max_examples=30)
@given(alpha=st.floats(1.05, 4.0), seed=st.integers(0, 2**20), scale=st.sampled_from([0.0, 0.1, 1.0, 30.0, 1e4]))
def test_entmax_satisfies_the_optimality_conditions(alpha: float, seed: int, scale: float) -> None:
    """Optimality: on the support a^{alpha-1} = (alpha-1) s - tau, elsewhere (alpha-1) s <= tau."""
    s = scale * random(seed, 1, 1, 2, 6)
    a = entmax(s, alpha)
    assert float((a.sum(-1) - 1).abs().max()) < 1e-8
    tau = (alpha - 1) * s - a ** (alpha - 1)
    support_tau = torch.where(a > 0, tau, torch.nan)
    threshold = support_tau.nanmean(-1, keepdim=True)
    assert float((support_tau - threshold).nan_to_num().abs().max()) < 1e-8 * max(1.0, scale)
    assert bool(((alpha - 1) * s <= threshold + 1e-8 * max(1.0, scale))[a == 0].all())


@pytest.mark.parametrize("alpha", [1.001, 1.05, 1.25, 1.5, 1.75, 1.999, 2.0])
def test_sorting_and_newton_match_bisection(alpha: float) -> None:
    for s in (random(2, 2, 2, 3, 9), 1e4 * random(3, 2, 2, 3, 9), torch.zeros(1, 1, 2, 9, dtype=torch.float64)):
        x = (s - s.amax(-1, keepdim=True)) * (alpha - 1)
        assert gap(entmax(s, alpha), (x - bisection_threshold(x, alpha)).clamp(min=0) ** (1 / (alpha - 1))) < 1e-7


@pytest.mark.parametrize("alpha", [1.05, 1.25, 1.75, 1.99])
@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_newton_converges_for_many_keys(alpha: float, scale: float) -> None:
    x = (alpha - 1) * scale * random(8, 1, 1, 1, 2_000)
    x = x - x.amax(-1, keepdim=True)
    assert gap(newton_threshold(x, alpha), bisection_threshold(x, alpha)) < 1e-14
    assert gap(newton_threshold(x, alpha, steps=16), newton_threshold(x, alpha)) < 1e-14


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
def test_masked_keys_and_empty_rows_have_zero_weight(alpha: float) -> None:
    s = random(4, 1, 1, 3, 4)
    s[..., 0, :], s[..., 1, 2] = -torch.inf, -torch.inf
    a = entmax(s, alpha)
    assert not bool(a[0, 0, 0].any())
    assert float(a[0, 0, 1, 2]) == 0.0
    assert gap(a[..., 1:2, [0, 1, 3]], entmax(s[..., 1:2, [0, 1, 3]], alpha)) < 1e-12


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
def test_gradient_matches_finite_differences(alpha: float) -> None:
    assert torch.autograd.gradcheck(Entmax(alpha), random(5, 1, 2, 2, 4).requires_grad_())


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
def test_backward_pass_is_differentiable(alpha: float) -> None:
    """Jacobian-vector products of layers differentiate the backward pass."""
    s, d, v = random(5, 1, 2, 2, 4).requires_grad_(), random(6, 1, 2, 2, 4).requires_grad_(), random(7, 1, 2, 2, 4)
    score_gradient = torch.autograd.grad(Entmax(alpha)(s), s, d, create_graph=True)[0]
    step = 1e-6
    finite_difference = (entmax(s.detach() + step * v, alpha) - entmax(s.detach() - step * v, alpha)) / (2 * step)
    assert gap(torch.autograd.grad(score_gradient, d, v)[0], finite_difference) < 1e-7
