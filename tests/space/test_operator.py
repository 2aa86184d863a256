"""Factored operators equal their dense matrices, for any rank and batch and for zero."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from rheoscope.shapes import RheoscopeError
from rheoscope.space.operator import Factored

TOLERANCE = 1e-9


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(seed), dtype=torch.float64)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Factored, Factored]:
    """Two operators on one space, with ranks from 1 to beyond the width and zero to two batch axes; some are 0."""
    d, r, s = draw(st.integers(1, 7)), draw(st.integers(1, 9)), draw(st.integers(1, 9))
    batch = draw(st.sampled_from([(), (1,), (3,), (2, 3)]))
    seed, size = draw(st.integers(0, 2**20)), draw(st.sampled_from([0.0, 1e-3, 1.0, 1e3]))
    A = Factored(random(seed, *batch, d, r), size * random(seed + 1, *batch, r, d))
    return A, Factored(random(seed + 2, *batch, d, s), random(seed + 3, *batch, s, d))


def assert_close(a: Tensor, b: Tensor, size: float = 1.0) -> None:
    assert a.shape == b.shape, (a.shape, b.shape)
    assert float((a - b).abs().max()) <= TOLERANCE * (size + float(b.abs().max()))


def transposed_twice(A: Factored) -> Factored:
    return A.T.T


def positive_part(D: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh((D + D.mT) / 2)
    return vectors * values.clamp(min=0)[..., None, :] @ vectors.mT


def frobenius(D: Tensor, E: Tensor) -> Tensor:
    return (D * E).sum((-1, -2))


def safe_divide(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(b > 0, a / torch.where(b > 0, b, 1), 0)


def best_approximation(D: Tensor, r: int) -> Tensor:
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
    "symmetric": (lambda A, B: A.symmetric_part(), lambda D, E: (D + D.mT) / 2),
    "skew": (lambda A, B: A.skew_part(), lambda D, E: (D - D.mT) / 2),
    "positive": (lambda A, B: A.positive_part(), lambda D, E: positive_part(D)),
    "rank 1": (lambda A, B: A.truncate_rank(1), lambda D, E: best_approximation(D, 1)),
    "rank 2": (lambda A, B: A.truncate_rank(2), lambda D, E: best_approximation(D, 2)),
    "rank 99": (lambda A, B: A.truncate_rank(99), lambda D, E: D),
}
NUMBERS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "tr": (lambda A, B: A.tr(), lambda D, E: D.diagonal(dim1=-2, dim2=-1).sum(-1)),
    "norm": (lambda A, B: A.norm(), lambda D, E: torch.linalg.matrix_norm(D)),
    "inner": (lambda A, B: A.inner(B), frobenius),
    "symmetry": (lambda A, B: A.symmetry(), lambda D, E: safe_divide(frobenius(D, D.mT), frobenius(D, D))),
    "stable_rank": (
        lambda A, B: A.stable_rank(),
        lambda D, E: safe_divide(frobenius(D, D), torch.linalg.svdvals(D)[..., 0].square()),
    ),
    "row_norms": (lambda A, B: A.row_norms(), lambda D, E: D.norm(dim=-1)),
    "column_norms": (lambda A, B: A.column_norms(), lambda D, E: D.norm(dim=-2)),
}


@pytest.mark.parametrize("name", OPERATORS)
@settings(max_examples=25)
@given(pairs())
def test_operators_equal_the_dense_ones(name: str, pair: tuple[Factored, Factored]) -> None:
    A, B = pair
    factored, dense = OPERATORS[name]
    result, expected = factored(A, B), dense(A.dense(), B.dense())
    assert_close(result.dense(), expected)
    assert result.shape == tuple(expected.shape)
    assert result.left.shape[-1] <= A.left.shape[-1] + max(A.left.shape[-1], B.left.shape[-1])


@pytest.mark.parametrize("name", NUMBERS)
@settings(max_examples=25)
@given(pairs())
def test_numbers_equal_the_dense_ones(name: str, pair: tuple[Factored, Factored]) -> None:
    A, B = pair
    factored, dense = NUMBERS[name]
    assert_close(factored(A, B), dense(A.dense(), B.dense()))


@settings(max_examples=30)
@given(pairs())
def test_svd_equals_the_dense_one(pair: tuple[Factored, Factored]) -> None:
    A, _ = pair
    D = A.dense()
    u, s, vh = A.svd()
    small = min(D.shape[-1], A.left.shape[-1])
    assert_close(s, torch.linalg.svdvals(D)[..., :small])
    assert_close(s, A.singular_values())
    assert_close(u * s[..., None, :] @ vh, D)
    assert_close(u.mT @ u, torch.eye(small, dtype=D.dtype).expand(*s.shape[:-1], small, small))
    assert_close(vh @ vh.mT, torch.eye(small, dtype=D.dtype).expand(*s.shape[:-1], small, small))
    assert bool((s.diff(dim=-1) <= TOLERANCE * s[..., :1]).all())


def power_sums(values: Tensor) -> list[Tensor]:
    """Power sums, which determine a set of eigenvalues regardless of order and number of zeros."""
    return [(values**k).sum(-1).real for k in (1, 2, 3)]


@settings(max_examples=30)
@given(pairs())
def test_eigenvalues_equal_the_dense_ones(pair: tuple[Factored, Factored]) -> None:
    A, _ = pair
    D = A.dense()
    size = max(float(D.norm()), 1e-12)
    for factored, dense in zip(
        power_sums(A.eigenvalues() / size), power_sums(torch.linalg.eigvals(D) / size), strict=True
    ):
        assert_close(factored, dense)
    factored, dense = A.symmetric_eigenvalues() / size, torch.linalg.eigvalsh((D + D.mT) / 2) / size
    assert factored.shape[-1] <= D.shape[-1]
    for a, b in zip(power_sums(factored), power_sums(dense), strict=True):
        assert_close(a, b)
    assert_close(factored.abs().sum(-1), dense.abs().sum(-1))
    assert bool((factored.diff(dim=-1) >= 0).all())


@settings(max_examples=20)
@given(pairs(), st.integers(0, 2**20))
def test_map_and_bilinear_form_equal_the_dense_ones(pair: tuple[Factored, Factored], seed: int) -> None:
    A, _ = pair
    D = A.dense()
    x, y = random(seed, 4, D.shape[-1]), random(seed + 1, 3, D.shape[-1])
    assert_close(A.apply(x), x @ D)
    assert_close(A.bilinear_form(x, y), x @ D @ y.mT)


@settings(max_examples=20)
@given(pairs(), st.integers(0, 2**20))
def test_gauge_changes_no_number(pair: tuple[Factored, Factored], seed: int) -> None:
    A, B = pair
    r = A.left.shape[-1]
    G = torch.linalg.qr(random(seed, r, r))[0] * (1 + random(seed + 1, r).abs())
    transformed = Factored(A.left @ G, torch.linalg.solve(G, A.right))
    for name, (number, _) in NUMBERS.items():
        assert torch.allclose(number(transformed, B), number(A, B), rtol=1e-7, atol=1e-9), name
    assert_close(transformed.singular_values(), A.singular_values())


def test_identity_and_rotation_have_known_values() -> None:
    eye = Factored(torch.eye(3), torch.eye(3))
    assert eye.symmetry().item() == pytest.approx(1)
    assert eye.stable_rank().item() == pytest.approx(3)
    rotation = Factored(torch.eye(2), torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))
    assert rotation.symmetry().item() == pytest.approx(-1)
    assert rotation.skew_part().norm().item() == pytest.approx(2**0.5)
    assert rotation.symmetric_part().norm().item() == pytest.approx(0, abs=1e-6)
    assert sorted(rotation.eigenvalues().imag.tolist()) == pytest.approx([-1, 1])


def test_random_operator_has_symmetry_near_zero() -> None:
    A = Factored(random(0, 200, 64, 8), random(1, 200, 8, 64))
    assert abs(float(A.symmetry().mean())) < 0.03  # 1/d
    assert float(A.symmetry().abs().max()) < 0.2


def test_zero_operator_has_no_nan() -> None:
    zero = Factored(torch.zeros(2, 5, 3), torch.zeros(2, 3, 5))
    for number in (
        zero.tr(),
        zero.norm(),
        zero.symmetry(),
        zero.stable_rank(),
        zero.singular_values(),
        zero.row_norms(),
    ):
        assert bool((number == 0).all())
    assert bool((zero.eigenvalues().abs() == 0).all())
    for part in (zero.positive_part(), zero.truncate_rank(1), zero.symmetric_part(), zero.skew_part()):
        assert bool((part.dense() == 0).all())


def test_norms_of_small_operators_keep_their_digits() -> None:
    """Squares of small numbers would underflow in float32."""
    A = Factored(1e-15 * torch.eye(4), 1e-15 * torch.eye(4))
    assert A.norm().item() == pytest.approx(2e-30, rel=1e-5)


def test_indexing_selects_from_a_batch() -> None:
    A = Factored(random(0, 4, 6, 2), random(1, 4, 2, 6))
    assert_close(A[2].dense(), A.dense()[2])
    assert_close(A[1:3].dense(), A.dense()[1:3])
    assert A[0].shape == (6, 6)


def test_products_have_the_smaller_rank() -> None:
    thin, thick = Factored(random(0, 8, 2), random(1, 2, 8)), Factored(random(2, 8, 5), random(3, 5, 8))
    assert (thin @ thick).left.shape[-1] == 2
    assert (thick @ thin).left.shape[-1] == 2


def test_rectangular_operators_raise_where_square_ones_are_needed() -> None:
    A = Factored(random(0, 5, 2), random(1, 2, 7))
    assert A.shape == (5, 7)
    assert_close(A.T.dense(), A.dense().mT)
    assert_close(A.singular_values(), torch.linalg.svdvals(A.dense())[:2])
    assert_close(A.row_norms(), A.dense().norm(dim=-1))
    for method in (
        A.tr,
        A.eigenvalues,
        A.symmetry,
        A.symmetric_part,
        A.skew_part,
        A.positive_part,
        A.symmetric_eigenvalues,
    ):
        with pytest.raises(RheoscopeError, match="needs a square operator, got 5 x 7"):
            method()


@pytest.mark.parametrize("r", [0, -1])
def test_rank_below_one_raises(r: int) -> None:
    with pytest.raises(RheoscopeError, match=rf"a rank must be at least 1, got {r}; type truncate_rank\(1\)"):
        Factored(torch.eye(2), torch.eye(2)).truncate_rank(r)


def test_gradients_are_finite() -> None:
    left = random(0, 5, 2).requires_grad_()
    A = Factored(left, random(1, 2, 5))
    (A.norm() + A.tr() + A.symmetry()).backward()
    assert left.grad is not None
    assert bool(left.grad.isfinite().all())


def test_eigenvalues_of_many_equal_rows_converge() -> None:
    """A repetitive text has few different rows, each many times; float32 alone does not converge."""
    generator = torch.Generator().manual_seed(0)
    for seed in range(3):
        rows = torch.randn(2, 4, 12, 64, generator=generator).repeat(1, 1, 40, 1)
        A = Factored(rows[0] * 10.0**seed, rows[1].mT)
        values = A.symmetric_eigenvalues()
        assert values.dtype is torch.float32
        assert bool(values.isfinite().all())
        assert float((values.sum(-1) - A.tr()).abs().max()) <= 1e-3 * float(values.abs().max())
