"""Decompositions of many small matrices (heads are 64 wide), by LAPACK on the CPU cores for every device.

A GPU takes 270 ms for the eigenvectors of 384 such matrices, 16 cores take 40 ms. A GPU is fast at inner products of long
columns and their triangular factors, which stay there. Only r x r numbers of a tall matrix are copied.
"""

from collections.abc import Callable
from threading import Lock

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from rheoscope.space.cpu_cores import map_on_cores

MIN_CHOLESKY_PIVOT = 1e-3
"""Columns with a smaller pivot, relative to the largest, are decomposed by QR."""
LIBRARY_LOCK = Lock()
"""torch loads a library at its first decomposition on a GPU, which is not thread-safe."""


def svd(A: Float[Tensor, "*h m n"]) -> tuple[Float[Tensor, "*h m r"], Float[Tensor, "*h r"], Float[Tensor, "*h r n"]]:
    """U, s, Vh with A = U diag(s) Vh, s in descending order."""
    u, s, vh = _run_on_cpu(lambda chunk: tuple(torch.linalg.svd(chunk, full_matrices=False)), A)
    return u, s, vh


def svdvals(A: Float[Tensor, "*h m n"]) -> Float[Tensor, "*h r"]:
    """Singular values in descending order."""
    return _run_on_cpu(lambda chunk: (torch.linalg.svdvals(chunk),), A)[0]


def eigvals(A: Float[Tensor, "*h n n"]) -> Complex[Tensor, "*h n"]:
    """Eigenvalues of square matrices."""
    return _run_on_cpu(lambda chunk: (torch.linalg.eigvals(chunk),), A)[0]


def eigvalsh(A: Float[Tensor, "*h n n"]) -> Float[Tensor, "*h n"]:
    """Eigenvalues of symmetric matrices in ascending order."""
    return _run_on_cpu(lambda chunk: (torch.linalg.eigvalsh(chunk),), A)[0]


def eigh(A: Float[Tensor, "*h n n"]) -> tuple[Float[Tensor, "*h n"], Float[Tensor, "*h n n"]]:
    """Eigenvalues of symmetric matrices in ascending order, and eigenvectors as columns."""
    values, vectors = _run_on_cpu(lambda chunk: tuple(torch.linalg.eigh(chunk)), A)
    return values, vectors


def qr(A: Float[Tensor, "*h d r"], mode: str = "reduced") -> tuple[Tensor, Float[Tensor, "*h k r"]]:
    """The QR decomposition A = Q T, on the device of A; with `mode="r"` Q is empty.

    Some LAPACK builds (torch 2.11 for CUDA on ARM) return NaN for a float32 matrix of low rank; float64 works.

    >>> qr(torch.tensor([[3.0], [4.0]]))[1].abs()
    tensor([[5.]])
    """
    Q, T = torch.linalg.qr(A, mode=mode)
    if A.dtype == torch.float64 or A.device.type != "cpu" or T.isfinite().all() or not A.isfinite().all():
        return Q, T
    Q, T = torch.linalg.qr(A.double(), mode=mode)
    return Q.to(A.dtype), T.to(A.dtype)


def triangular_factor(A: Float[Tensor, "*h d r"]) -> Float[Tensor, "*h k r"]:
    """The triangular factor T of A = Q T, k = min(d, r), which determines the singular values of A.

    On a GPU from the inner products of its columns, in float64: TᵀT = AᵀA.

    >>> triangular_factor(torch.tensor([[3.0], [4.0]])).abs()
    tensor([[5.]])
    """
    if A.device.type == "cpu" or A.shape[-2] < A.shape[-1]:
        return _run_on_cpu(lambda chunk: (qr(chunk, mode="r")[1],), A)[0]
    with LIBRARY_LOCK:
        return cholesky_root(_gram(A)).to(A.dtype)


def orthonormal_factors(A: Float[Tensor, "*h d r"]) -> tuple[Float[Tensor, "*h d k"], Float[Tensor, "*h k r"]]:
    """Q, T with A = Q T and orthonormal columns of Q. On a GPU, Q is 0 beyond the rank of A and T is not triangular."""
    if A.device.type == "cpu" or A.shape[-2] < A.shape[-1]:
        Q, T = _run_on_cpu(qr, A)
        return Q, T
    T, inverse = _run_on_cpu(eigen_root, _gram(A))
    return (A.double() @ inverse).to(A.dtype), T.to(A.dtype)


def root_and_inverse(A: Float[Tensor, "*h d r"]) -> tuple[Float[Tensor, "*h k r"], Float[Tensor, "*h r k"]]:
    """T with TᵀT = AᵀA, and its pseudo-inverse, so the columns of A T⁻¹ are orthonormal. No matrix with d rows is decomposed.

    On a CPU by Cholesky, in float64, where the columns are far from dependent. Else by the triangular factor of A itself, because
    AᵀA loses singular values below 1e-8 of the largest.

    >>> T, inverse = root_and_inverse(torch.tensor([[3.0], [4.0]]).double())
    >>> T.tolist(), inverse.tolist()
    ([[5.0]], [[0.2]])
    """
    if A.device.type != "cpu" and A.shape[-2] >= A.shape[-1]:
        T, inverse = _run_on_cpu(eigen_root, _gram(A))
        return T.to(A.dtype), inverse.to(A.dtype)
    T, failed = torch.linalg.cholesky_ex(_gram(A), upper=True)
    diagonal = T.diagonal(dim1=-2, dim2=-1)
    if bool((failed > 0).any()) or bool((diagonal.amin(-1) < MIN_CHOLESKY_PIVOT * diagonal.amax(-1)).any()):
        T = triangular_factor(A)
        return T, _run_on_cpu(lambda chunk: (torch.linalg.pinv(chunk, rtol=1e-13),), T)[0]
    inverse = torch.linalg.solve_triangular(T, torch.eye(T.shape[-1], dtype=T.dtype), upper=True)
    return T.to(A.dtype), inverse.to(A.dtype)


def cholesky_root(gram: Float[Tensor, "*h r r"]) -> Float[Tensor, "*h r r"]:
    """A triangular T with TᵀT = gram (Cholesky); anything below 1e-7 of the longest column is rounding.

    >>> cholesky_root(torch.tensor([[25.0, 25.0], [25.0, 25.0]]).double()).round(decimals=3).tolist()
    [[5.0, 5.0], [0.0, 0.0]]
    """
    jitter = 1e-14 * gram.diagonal(dim1=-2, dim2=-1).amax(-1) + torch.finfo(gram.dtype).tiny
    return torch.linalg.cholesky_ex(gram + torch.diag_embed(jitter[..., None].expand(gram.shape[:-1])), upper=True).L


def eigen_root(gram: Float[Tensor, "*h r r"]) -> tuple[Float[Tensor, "*h r r"], Float[Tensor, "*h r r"]]:
    """T with TᵀT = gram, by eigenvectors, and its pseudo-inverse; eigenvalues below 1e-14 of the largest are rounding."""
    values, vectors = torch.linalg.eigh(gram)
    is_nonzero = values > 1e-14 * values[..., -1:].clamp(min=torch.finfo(values.dtype).tiny)
    root_values = torch.where(is_nonzero, values, 0).sqrt()
    inverse_roots = torch.where(is_nonzero, 1 / torch.where(is_nonzero, root_values, 1), 0)
    return root_values[..., None] * vectors.mT, vectors * inverse_roots[..., None, :]


def _gram(A: Float[Tensor, "*h d r"]) -> Float[Tensor, "*h r r"]:
    A = A.double()
    return A.mT @ A


def _run_on_cpu(decompose: Callable[[Tensor], tuple[Tensor, ...]], A: Float[Tensor, "*h m n"]) -> tuple[Tensor, ...]:
    """Decompose matrices on the CPU; those of another device are copied to its cores and back."""
    if A.device.type == "cpu":
        return decompose(A)
    return tuple(x.to(A.device) for x in run_in_chunks(decompose, A.cpu(), torch.get_num_threads()))


def run_in_chunks(
    decompose: Callable[[Tensor], tuple[Tensor, ...]], A: Float[Tensor, "*h m n"], n_chunks: int
) -> tuple[Tensor, ...]:
    """Decompose a batch of matrices in `n_chunks` parallel chunks."""
    chunks = A.reshape(-1, *A.shape[-2:]).tensor_split(max(1, min(n_chunks, A[..., 0, 0].numel())))
    results = zip(*map_on_cores(decompose, chunks), strict=True)
    return tuple(torch.cat(chunk_results).unflatten(0, A.shape[:-2]) for chunk_results in results)
