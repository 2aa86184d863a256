import torch

from rheoscope.attention.normaliser.domain import softmax
from rheoscope.attention.normaliser.sinkhorn import Sinkhorn
from tests.attention.cases import gap, random


def test_zero_rounds_are_softmax() -> None:
    s = random(1, 2, 2, 5, 5)
    assert gap(Sinkhorn(0)(s), softmax(s)) < 1e-14


def test_rounds_alternate_columns_and_rows() -> None:
    s = random(1, 1, 1, 4, 4)
    a = s.exp()
    a = a / a.sum(-1, keepdim=True)
    for _ in range(3):
        a = a / a.sum(-2, keepdim=True)
        a = a / a.sum(-1, keepdim=True)
    assert gap(Sinkhorn(3)(s), a) < 1e-13


def test_column_sums_converge_to_one() -> None:
    s = random(2, 1, 2, 6, 6)
    errors = [float((Sinkhorn(rounds)(s).sum(-2) - 1).abs().max()) for rounds in (0, 1, 3, 10, 100)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.1
    assert errors[-1] < 1e-12


def test_limit_is_invariant_to_row_and_column_constants() -> None:
    s = random(3, 1, 1, 5, 5)
    shifted = s + random(4, 1, 1, 5, 1) + random(5, 1, 1, 1, 5)
    assert gap(Sinkhorn(200)(shifted), Sinkhorn(200)(s)) < 1e-9


def test_large_logits_stay_finite() -> None:
    a = Sinkhorn(10)(1e4 * random(6, 1, 1, 5, 5))
    assert bool(a.isfinite().all())
    assert gap(a.sum(-1), torch.ones(1, 1, 5).double()) < 1e-9
