"""Decompositions in parts are those of the whole; triangles from inner products are those of QR, ranks that fall short included."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rheoscope.space.decompositions import even_root, in_parts, orthonormal, qr, root, triangle
from tests.pretrained.cases import random

F64 = torch.float64


@given(seed=st.integers(0, 1000), parts=st.integers(1, 9))
def test_in_parts_is_the_whole(seed: int, parts: int) -> None:
    A = random(seed, 2, 3, 4, 4)
    (found,) = in_parts(lambda part: (torch.linalg.svdvals(part),), A, parts)
    assert torch.allclose(found, torch.linalg.svdvals(A))


@given(seed=st.integers(0, 1000), rank=st.integers(0, 5))
def test_a_triangle_from_inner_products_is_that_of_qr(seed: int, rank: int) -> None:
    A = random(seed, 2, 12, 5)
    A[1] = A[1, :, :rank] @ random(seed + 1, rank, 5)
    T = root(A.mT @ A)
    assert not T.tril(-1).any()
    assert torch.allclose(T.mT @ T, A.mT @ A, atol=1e-9)
    assert torch.allclose(torch.linalg.svdvals(T), torch.linalg.svdvals(triangle(A)), atol=1e-5)


@given(seed=st.integers(0, 1000), rank=st.integers(0, 4))
def test_columns_from_inner_products_are_orthonormal(seed: int, rank: int) -> None:
    A = random(seed, 3, 20, 4)
    A[1] = A[1, :, :rank] @ random(seed + 1, rank, 4)
    T, inverse = even_root(A.mT @ A)
    Q = A @ inverse
    assert torch.allclose(Q @ T, A, atol=1e-6)
    for one, directions in zip(Q, (4, rank, 4), strict=True):
        assert torch.allclose((one.mT @ one).trace(), torch.tensor(float(directions), dtype=F64), atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_on_a_gpu_as_on_a_cpu(dtype: torch.dtype) -> None:
    A = random(0, 6, 40, 8).to(dtype).cpu()
    (Q, T), (q, t) = orthonormal(A), (x.cpu() for x in orthonormal(A.cuda()))
    assert torch.allclose(q @ t, Q @ T, atol=1e-5)
    assert torch.allclose(triangle(A.cuda()).abs().cpu(), triangle(A).abs(), atol=1e-5)


def test_a_qr_that_fails_in_float32_is_done_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    own, A = torch.linalg.qr, random(0, 2, 5, 3)

    def failing(A: torch.Tensor, mode: str = "reduced") -> tuple[torch.Tensor, ...]:
        """As an LAPACK does that has no answer to a float32 matrix of low rank."""
        return tuple(x if A.dtype == torch.float64 else torch.full_like(x, torch.nan) for x in own(A, mode=mode))

    monkeypatch.setattr(torch.linalg, "qr", failing)
    Q, T = qr(A.float())
    assert Q.dtype == T.dtype == torch.float32
    assert torch.allclose(Q @ T, A.float(), atol=1e-6)
    assert torch.allclose(triangle(A.float()), T)
    assert not any(x.isfinite().any() for x in qr(torch.full((2, 2), torch.nan)))  # what is no number stays none
