"""The best scores there are, by brute force where that is possible; and what tied maps can never be."""

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


def test_the_best_scores_are_reached_and_never_passed() -> None:
    told = done("relations")
    assert float((told.error - told.error_best).min()) > -1e-12
    assert float((told.error - told.error_best).max()) < 2e-3


def test_untied_is_the_truncated_decomposition() -> None:
    R = random(1, 2, N, N)
    U, s, V = torch.linalg.svd(R)
    for k in (1, 5, N):
        S = U[:, :, :k] * s[:, None, :k] @ V[:, :k]
        assert torch.allclose(best_untied(R, k), missed_fraction(R, S), atol=1e-12)


def test_tied_is_the_positive_part_and_no_similarity_comes_nearer() -> None:
    R = random(1, 2, N, N)
    values, vectors = torch.linalg.eigh((R + R.mT) / 2)
    for k in (1, 5, N):
        top = (vectors * values.clamp(min=0)[:, None])[..., -k:] @ vectors[..., -k:].mT
        assert torch.allclose(best_tied(R, k), missed_fraction(R, top), atol=1e-12)
        for seed in range(5):  # any other of that rank
            other = top + 0.1 * torch.einsum("rik,rjk->rij", *[random(seed, 2, N, k)] * 2)
            assert bool((missed_fraction(R, other) > best_tied(R, k)).all())


def test_an_order_is_out_of_reach_of_one_map_and_easy_for_two() -> None:
    """Singular values cot((2m − 1)π/2n), each twice: odd numbers of features gain half a pair."""
    order = sample_relations(0)["order"][None]
    told = torch.linalg.svdvals(order)[0]
    due = torch.tensor([1 / math.tan((2 * m + 1) * math.pi / (2 * N)) for m in range(N // 2) for _ in range(2)])
    assert torch.allclose(told, due.double(), atol=1e-4)
    assert [float(best_tied(order, k)) for k in (1, 7, N)] == pytest.approx([1, 1, 1])
    assert float(1 - best_untied(order, 2)) == pytest.approx(8 / math.pi**2, abs=0.03)


def test_the_floors_of_tied_maps_in_large_clouds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the square of a random symmetric relation, all of an order, three quarters of a random relation."""
    monkeypatch.setattr(relations, "N", 500)
    R = torch.stack(list(sample_relations(3).values()))
    assert best_tied(R, 500).tolist() == pytest.approx([0.5, 1, 0.75], abs=0.01)


def test_every_way_has_its_best() -> None:
    assert list(FIT_FUNCTIONS) == list(BEST_ERRORS)
