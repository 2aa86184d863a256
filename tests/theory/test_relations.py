"""Tests of the best tied and untied fits of relations."""

import math

import pytest
import torch

from rheoscope.theory import relations
from rheoscope.theory.relations import (
    BEST_ERRORS,
    FIT_FUNCTIONS,
    N,
    best_tied,
    best_untied,
    missed_fraction,
    sample_relations,
)
from tests.attention.cases import random
from tests.theory.cases import done


def test_fitted_errors_reach_the_best_errors() -> None:
    result = done("relations")
    assert float((result.error - result.error_best).min()) > -1e-12
    assert float((result.error - result.error_best).max()) < 2e-3


def test_best_untied_error_is_that_of_the_truncated_svd() -> None:
    R = random(1, 2, N, N)
    U, s, V = torch.linalg.svd(R)
    for k in (1, 5, N):
        S = U[:, :, :k] * s[:, None, :k] @ V[:, :k]
        assert torch.allclose(best_untied(R, k), missed_fraction(R, S), atol=1e-12)


def test_best_tied_error_is_that_of_the_positive_part() -> None:
    R = random(1, 2, N, N)
    values, vectors = torch.linalg.eigh((R + R.mT) / 2)
    for k in (1, 5, N):
        best = (vectors * values.clamp(min=0)[:, None])[..., -k:] @ vectors[..., -k:].mT
        assert torch.allclose(best_tied(R, k), missed_fraction(R, best), atol=1e-12)
        for seed in range(5):  # other matrices of the same rank
            candidate = best + 0.1 * torch.einsum("rik,rjk->rij", *[random(seed, 2, N, k)] * 2)
            assert bool((missed_fraction(R, candidate) > best_tied(R, k)).all())


def test_an_order_needs_two_maps() -> None:
    """The singular values are cot((2m − 1)π/2n), each twice."""
    order = sample_relations(0)["order"][None]
    result = torch.linalg.svdvals(order)[0]
    expected = torch.tensor([1 / math.tan((2 * m + 1) * math.pi / (2 * N)) for m in range(N // 2) for _ in range(2)])
    assert torch.allclose(result, expected.double(), atol=1e-4)
    assert [float(best_tied(order, k)) for k in (1, 7, N)] == pytest.approx([1, 1, 1])
    assert float(1 - best_untied(order, 2)) == pytest.approx(8 / math.pi**2, abs=0.03)


def test_tied_errors_have_their_limits_for_many_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tied maps miss 1/2 of a random symmetric relation, all of an order and 3/4 of a random relation."""
    monkeypatch.setattr(relations, "N", 500)
    R = torch.stack(list(sample_relations(3).values()))
    assert best_tied(R, 500).tolist() == pytest.approx([0.5, 1, 0.75], abs=0.01)


def test_every_fit_has_a_best_error() -> None:
    assert list(FIT_FUNCTIONS) == list(BEST_ERRORS)
