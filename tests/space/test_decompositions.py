"""Chunked decompositions equal whole ones, and triangular factors from inner products equal those of QR at any rank."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rheoscope.space.decompositions import (
    cholesky_root,
    eigen_root,
    orthonormal_factors,
    qr,
    root_and_inverse,
    run_in_chunks,
    triangular_factor,
)
from tests.pretrained.cases import random

F64 = torch.float64


@given(seed=st.integers(0, 1000), n_chunks=st.integers(1, 9))
def test_chunked_decomposition_equals_the_whole(seed: int, n_chunks: int) -> None:
    A = random(seed, 2, 3, 4, 4)
    (values,) = run_in_chunks(lambda chunk: (torch.linalg.svdvals(chunk),), A, n_chunks)
    assert torch.allclose(values, torch.linalg.svdvals(A))


@given(seed=st.integers(0, 1000), rank=st.integers(0, 5))
def test_cholesky_factor_equals_that_of_qr(seed: int, rank: int) -> None:
    A = random(seed, 2, 12, 5)
    A[1] = A[1, :, :rank] @ random(seed + 1, rank, 5)
    T = cholesky_root(A.mT @ A)
    assert not T.tril(-1).any()
    assert torch.allclose(T.mT @ T, A.mT @ A, atol=1e-9)
    assert torch.allclose(torch.linalg.svdvals(T), torch.linalg.svdvals(triangular_factor(A)), atol=1e-5)


@given(seed=st.integers(0, 1000), rank=st.integers(0, 4), spread=st.sampled_from([0, 3, 6]))
def test_roots_and_their_inverses_are_those_of_orthonormal_columns(seed: int, rank: int, spread: int) -> None:
    """Independent columns, columns of a lower rank, and columns whose lengths spread over many powers of ten."""
    A = random(seed, 3, 20, 4) * torch.logspace(0, -spread, 4, dtype=F64)
    A[1] = A[1, :, :rank] @ random(seed + 1, rank, 4)
    for matrices in (A, A[::2]):
        T, inverse = root_and_inverse(matrices)
        Q = matrices @ inverse
        assert torch.allclose(T.mT @ T, matrices.mT @ matrices, atol=1e-9)
        assert torch.allclose(Q @ T, matrices, atol=1e-12)
        expected_ranks = torch.tensor([4, rank, 4] if len(matrices) == 3 else [4, 4], dtype=F64)
        assert torch.allclose(Q.square().sum((-2, -1)), expected_ranks, atol=1e-9)


@given(seed=st.integers(0, 1000), rank=st.integers(0, 4))
def test_columns_from_inner_products_are_orthonormal(seed: int, rank: int) -> None:
    A = random(seed, 3, 20, 4)
    A[1] = A[1, :, :rank] @ random(seed + 1, rank, 4)
    T, inverse = eigen_root(A.mT @ A)
    Q = A @ inverse
    assert torch.allclose(Q @ T, A, atol=1e-6)
    for matrix, expected_rank in zip(Q, (4, rank, 4), strict=True):
        assert torch.allclose((matrix.mT @ matrix).trace(), torch.tensor(float(expected_rank), dtype=F64), atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_gpu_equals_cpu(dtype: torch.dtype) -> None:
    A = random(0, 6, 40, 8).to(dtype).cpu()
    (Q, T), (q, t) = orthonormal_factors(A), (x.cpu() for x in orthonormal_factors(A.cuda()))
    assert torch.allclose(q @ t, Q @ T, atol=1e-5)
    assert torch.allclose(triangular_factor(A.cuda()).abs().cpu(), triangular_factor(A).abs(), atol=1e-5)


def test_qr_falls_back_to_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    original_qr, A = torch.linalg.qr, random(0, 2, 5, 3)

    def failing_qr(A: torch.Tensor, mode: str = "reduced") -> tuple[torch.Tensor, ...]:
        """Like an LAPACK build that fails for float32 matrices of low rank."""
        return tuple(
            x if A.dtype == torch.float64 else torch.full_like(x, torch.nan) for x in original_qr(A, mode=mode)
        )

    monkeypatch.setattr(torch.linalg, "qr", failing_qr)
    Q, T = qr(A.float())
    assert Q.dtype == T.dtype == torch.float32
    assert torch.allclose(Q @ T, A.float(), atol=1e-6)
    assert torch.allclose(triangular_factor(A.float()), T)
    assert not any(x.isfinite().any() for x in qr(torch.full((2, 2), torch.nan)))  # NaN stays NaN
