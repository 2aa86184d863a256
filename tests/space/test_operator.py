"""Factored operators answer as the dense matrix does: any rank, any batch, nothing but zeros."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from rheoscope.shapes import RheoscopeError
from rheoscope.space.operator import Factored

NEAR = 1e-9


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(seed), dtype=torch.float64)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Factored, Factored]:
    """Two operators on one space, of ranks from 1 to beyond the width, with a batch axis, two, or none; some are 0."""
    d, r, s = draw(st.integers(1, 7)), draw(st.integers(1, 9)), draw(st.integers(1, 9))
    batch = draw(st.sampled_from([(), (1,), (3,), (2, 3)]))
    seed, size = draw(st.integers(0, 2**20)), draw(st.sampled_from([0.0, 1e-3, 1.0, 1e3]))
    A = Factored(random(seed, *batch, d, r), size * random(seed + 1, *batch, r, d))
    return A, Factored(random(seed + 2, *batch, d, s), random(seed + 3, *batch, s, d))


def near(a: Tensor, b: Tensor, size: float = 1.0) -> None:
    assert a.shape == b.shape, (a.shape, b.shape)
    assert float((a - b).abs().max()) <= NEAR * (size + float(b.abs().max()))


def transposed_twice(A: Factored) -> Factored:
    return A.T.T


def positive_part(D: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh((D + D.mT) / 2)
    return vectors * values.clamp(min=0)[..., None, :] @ vectors.mT


def frobenius(D: Tensor, E: Tensor) -> Tensor:
    return (D * E).sum((-1, -2))


def safe(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(b > 0, a / torch.where(b > 0, b, 1), 0)


def best(D: Tensor, r: int) -> Tensor:
    u, s, vh = torch.linalg.svd(D, full_matrices=False)
    return u[..., :r] * s[..., None, :r] @ vh[..., :r, :]


OPERATORS: dict[str, tuple[Callable[..., Factored], Callable[..., Tensor]]] = {
    "A": (lambda A, B: A, lambda D, E: D),
    "A B": (lambda A, B: A @ B, lambda D, E: D @ E),
    "B A": (lambda A, B: B @ A, lambda D, E: E @ D),
    "A + B": (lambda A, B: A + B, lambda D, E: D + E),
    "3 A": (lambda A, B: 3 * A, lambda D, E: 3 * D),
    "A 3": (lambda A, B: A * 3.0, lambda D, E: 3 * D),
    "A^T": (lambda A, B: A.T, lambda D, E: D.mT),
    "A^T^T": (lambda A, B: transposed_twice(A), lambda D, E: D),
    "symmetric": (lambda A, B: A.symmetric(), lambda D, E: (D + D.mT) / 2),
    "skew": (lambda A, B: A.skew(), lambda D, E: (D - D.mT) / 2),
    "positive": (lambda A, B: A.positive(), lambda D, E: positive_part(D)),
    "rank 1": (lambda A, B: A.rank(1), lambda D, E: best(D, 1)),
    "rank 2": (lambda A, B: A.rank(2), lambda D, E: best(D, 2)),
    "rank 99": (lambda A, B: A.rank(99), lambda D, E: D),
}
NUMBERS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "tr": (lambda A, B: A.tr(), lambda D, E: D.diagonal(dim1=-2, dim2=-1).sum(-1)),
    "norm": (lambda A, B: A.norm(), lambda D, E: torch.linalg.matrix_norm(D)),
    "inner": (lambda A, B: A.inner(B), frobenius),
    "symmetry": (lambda A, B: A.symmetry(), lambda D, E: safe(frobenius(D, D.mT), frobenius(D, D))),
    "stable_rank": (
        lambda A, B: A.stable_rank(),
        lambda D, E: safe(frobenius(D, D), torch.linalg.svdvals(D)[..., 0].square()),
    ),
    "row_norms": (lambda A, B: A.row_norms(), lambda D, E: D.norm(dim=-1)),
    "column_norms": (lambda A, B: A.column_norms(), lambda D, E: D.norm(dim=-2)),
}


@pytest.mark.parametrize("which", OPERATORS)
@settings(max_examples=25)
@given(pairs())
def test_operators_equal_the_dense_ones(which: str, pair: tuple[Factored, Factored]) -> None:
    A, B = pair
    factored, dense = OPERATORS[which]
    found, wanted = factored(A, B), dense(A.dense(), B.dense())
    near(found.dense(), wanted)
    assert found.shape == tuple(wanted.shape)
    assert found.left.shape[-1] <= A.left.shape[-1] + max(A.left.shape[-1], B.left.shape[-1])


@pytest.mark.parametrize("which", NUMBERS)
@settings(max_examples=25)
@given(pairs())
def test_numbers_equal_the_dense_ones(which: str, pair: tuple[Factored, Factored]) -> None:
    A, B = pair
    factored, dense = NUMBERS[which]
    near(factored(A, B), dense(A.dense(), B.dense()))


@settings(max_examples=30)
@given(pairs())
def test_singular_values_and_vectors(pair: tuple[Factored, Factored]) -> None:
    A, _ = pair
    D = A.dense()
    u, s, vh = A.svd()
    small = min(D.shape[-1], A.left.shape[-1])
    near(s, torch.linalg.svdvals(D)[..., :small])
    near(s, A.singular_values())
    near(u * s[..., None, :] @ vh, D)
    near(u.mT @ u, torch.eye(small, dtype=D.dtype).expand(*s.shape[:-1], small, small))
    near(vh @ vh.mT, torch.eye(small, dtype=D.dtype).expand(*s.shape[:-1], small, small))
    assert bool((s.diff(dim=-1) <= NEAR * s[..., :1]).all())


def coefficients(values: Tensor) -> list[Tensor]:
    """Power sums: what a set of eigenvalues is, whatever its order and its number of zeros."""
    return [(values**k).sum(-1).real for k in (1, 2, 3)]


@settings(max_examples=30)
@given(pairs())
def test_eigenvalues(pair: tuple[Factored, Factored]) -> None:
    A, _ = pair
    D = A.dense()
    size = max(float(D.norm()), 1e-12)
    for mine, own in zip(
        coefficients(A.eigenvalues() / size), coefficients(torch.linalg.eigvals(D) / size), strict=True
    ):
        near(mine, own)
    mine, own = A.symmetric_eigenvalues() / size, torch.linalg.eigvalsh((D + D.mT) / 2) / size
    assert mine.shape[-1] <= D.shape[-1]
    for a, b in zip(coefficients(mine), coefficients(own), strict=True):
        near(a, b)
    near(mine.abs().sum(-1), own.abs().sum(-1))
    assert bool((mine.diff(dim=-1) >= 0).all())


@settings(max_examples=20)
@given(pairs(), st.integers(0, 2**20))
def test_as_a_map_and_as_a_form(pair: tuple[Factored, Factored], seed: int) -> None:
    A, _ = pair
    D = A.dense()
    x, y = random(seed, 4, D.shape[-1]), random(seed + 1, 3, D.shape[-1])
    near(A.apply(x), x @ D)
    near(A.form(x, y), x @ D @ y.mT)


@settings(max_examples=20)
@given(pairs(), st.integers(0, 2**20))
def test_a_gauge_move_changes_no_answer(pair: tuple[Factored, Factored], seed: int) -> None:
    A, B = pair
    r = A.left.shape[-1]
    G = torch.linalg.qr(random(seed, r, r))[0] * (1 + random(seed + 1, r).abs())
    moved = Factored(A.left @ G, torch.linalg.solve(G, A.right))
    for which, (answer, _) in NUMBERS.items():
        assert torch.allclose(answer(moved, B), answer(A, B), rtol=1e-7, atol=1e-9), which
    near(moved.singular_values(), A.singular_values())


def test_known_values() -> None:
    eye = Factored(torch.eye(3), torch.eye(3))
    assert eye.symmetry().item() == pytest.approx(1)
    assert eye.stable_rank().item() == pytest.approx(3)
    turn = Factored(torch.eye(2), torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))
    assert turn.symmetry().item() == pytest.approx(-1)
    assert turn.skew().norm().item() == pytest.approx(2**0.5)
    assert turn.symmetric().norm().item() == pytest.approx(0, abs=1e-6)
    assert sorted(turn.eigenvalues().imag.tolist()) == pytest.approx([-1, 1])


def test_a_random_operator_has_no_symmetry() -> None:
    A = Factored(random(0, 200, 64, 8), random(1, 200, 8, 64))
    assert abs(float(A.symmetry().mean())) < 0.03  # 1/d
    assert float(A.symmetry().abs().max()) < 0.2


def test_the_zero_operator_answers_without_nan() -> None:
    zero = Factored(torch.zeros(2, 5, 3), torch.zeros(2, 3, 5))
    for answer in (
        zero.tr(),
        zero.norm(),
        zero.symmetry(),
        zero.stable_rank(),
        zero.singular_values(),
        zero.row_norms(),
    ):
        assert bool((answer == 0).all())
    assert bool((zero.eigenvalues().abs() == 0).all())
    for part in (zero.positive(), zero.rank(1), zero.symmetric(), zero.skew()):
        assert bool((part.dense() == 0).all())


def test_small_operators_keep_their_digits() -> None:
    """Squares of small numbers would be lost in float32: |A| is read off triangular factors."""
    A = Factored(1e-15 * torch.eye(4), 1e-15 * torch.eye(4))
    assert A.norm().item() == pytest.approx(2e-30, rel=1e-5)


def test_one_of_a_batch() -> None:
    A = Factored(random(0, 4, 6, 2), random(1, 4, 2, 6))
    near(A[2].dense(), A.dense()[2])
    near(A[1:3].dense(), A.dense()[1:3])
    assert A[0].shape == (6, 6)


def test_products_keep_the_smaller_rank() -> None:
    thin, thick = Factored(random(0, 8, 2), random(1, 2, 8)), Factored(random(2, 8, 5), random(3, 5, 8))
    assert (thin @ thick).left.shape[-1] == 2
    assert (thick @ thin).left.shape[-1] == 2


def test_an_operator_between_two_spaces() -> None:
    A = Factored(random(0, 5, 2), random(1, 2, 7))
    assert A.shape == (5, 7)
    near(A.T.dense(), A.dense().mT)
    near(A.singular_values(), torch.linalg.svdvals(A.dense())[:2])
    near(A.row_norms(), A.dense().norm(dim=-1))
    for ask in (A.tr, A.eigenvalues, A.symmetry, A.symmetric, A.skew, A.positive, A.symmetric_eigenvalues):
        with pytest.raises(RheoscopeError, match="needs a square operator, got 5 x 7"):
            ask()


@pytest.mark.parametrize("r", [0, -1])
def test_a_rank_below_one_is_refused(r: int) -> None:
    with pytest.raises(RheoscopeError, match=rf"a rank is at least 1, got {r}; type .rank\(1\)"):
        Factored(torch.eye(2), torch.eye(2)).rank(r)


def test_gradients_flow() -> None:
    left = random(0, 5, 2).requires_grad_()
    A = Factored(left, random(1, 2, 5))
    (A.norm() + A.tr() + A.symmetry()).backward()
    assert left.grad is not None
    assert bool(left.grad.isfinite().all())


def test_eigenvalues_of_many_equal_rows_converge() -> None:
    """Few different rows, each many times over, as a text that repeats itself gives them: float32 alone does not converge."""
    generator = torch.Generator().manual_seed(0)
    for seed in range(3):
        rows = torch.randn(2, 4, 12, 64, generator=generator).repeat(1, 1, 40, 1)
        A = Factored(rows[0] * 10.0**seed, rows[1].mT)
        values = A.symmetric_eigenvalues()
        assert values.dtype is torch.float32
        assert bool(values.isfinite().all())
        assert float((values.sum(-1) - A.tr()).abs().max()) <= 1e-3 * float(values.abs().max())
