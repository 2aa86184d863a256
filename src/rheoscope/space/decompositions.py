"""Decompositions of many small matrices (heads are 64 wide): by LAPACK on the cores of the CPU, wherever the matrices are.

A GPU takes 270 ms for the eigenvectors of 384 such matrices, 16 cores 40 ms. What a GPU is good at, the inner products of long
columns and their triangles, stays there: of a matrix of many rows only r x r numbers travel.
"""

from collections.abc import Callable
from threading import Lock

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from rheoscope.space.cpu_cores import on_cores

LOADING = Lock()
"""At its first decomposition on a GPU torch loads a library, which two threads must not do at once."""


def svd(A: Float[Tensor, "*h m n"]) -> tuple[Float[Tensor, "*h m r"], Float[Tensor, "*h r"], Float[Tensor, "*h r n"]]:
    """U, s, Vh with A = U diag(s) Vh, s falling."""
    u, s, vh = _on_cores(lambda part: tuple(torch.linalg.svd(part, full_matrices=False)), A)
    return u, s, vh


def svdvals(A: Float[Tensor, "*h m n"]) -> Float[Tensor, "*h r"]:
    """Singular values, falling."""
    return _on_cores(lambda part: (torch.linalg.svdvals(part),), A)[0]


def eigvals(A: Float[Tensor, "*h n n"]) -> Complex[Tensor, "*h n"]:
    """Eigenvalues of any square matrices."""
    return _on_cores(lambda part: (torch.linalg.eigvals(part),), A)[0]


def eigvalsh(A: Float[Tensor, "*h n n"]) -> Float[Tensor, "*h n"]:
    """Eigenvalues of symmetric matrices, rising."""
    return _on_cores(lambda part: (torch.linalg.eigvalsh(part),), A)[0]


def eigh(A: Float[Tensor, "*h n n"]) -> tuple[Float[Tensor, "*h n"], Float[Tensor, "*h n n"]]:
    """Eigenvalues of symmetric matrices, rising, and their vectors as columns."""
    values, vectors = _on_cores(lambda part: tuple(torch.linalg.eigh(part)), A)
    return values, vectors


def qr(A: Float[Tensor, "*h d r"], mode: str = "reduced") -> tuple[Tensor, Float[Tensor, "*h k r"]]:
    """The QR decomposition A = Q T, on the device of A; with `mode="r"` Q is empty.

    LAPACKs of some machines (torch 2.11 for CUDA on ARM) answer a float32 matrix of low rank with NaN, and a float64 one rightly.

    >>> qr(torch.tensor([[3.0], [4.0]]))[1].abs()
    tensor([[5.]])
    """
    Q, T = torch.linalg.qr(A, mode=mode)
    if A.dtype == torch.float64 or A.device.type != "cpu" or T.isfinite().all() or not A.isfinite().all():
        return Q, T
    Q, T = torch.linalg.qr(A.double(), mode=mode)
    return Q.to(A.dtype), T.to(A.dtype)


def triangle(A: Float[Tensor, "*h d r"]) -> Float[Tensor, "*h k r"]:
    """The triangular factor T of A = Q T, k = min(d, r): all that singular values need to know of A.

    On a GPU from the inner products of its columns, in float64: TᵀT = AᵀA.

    >>> triangle(torch.tensor([[3.0], [4.0]])).abs()
    tensor([[5.]])
    """
    if A.device.type == "cpu" or A.shape[-2] < A.shape[-1]:
        return _on_cores(lambda part: (qr(part, mode="r")[1],), A)[0]
    with LOADING:
        return root(_gram(A)).to(A.dtype)


def orthonormal(A: Float[Tensor, "*h d r"]) -> tuple[Float[Tensor, "*h d k"], Float[Tensor, "*h k r"]]:
    """Q, T with A = Q T, columns of Q orthonormal; on a GPU 0 where A has no more directions, and T is no triangle."""
    if A.device.type == "cpu" or A.shape[-2] < A.shape[-1]:
        Q, T = _on_cores(qr, A)
        return Q, T
    T, inverse = _on_cores(even_root, _gram(A))
    return (A.double() @ inverse).to(A.dtype), T.to(A.dtype)


def root(gram: Float[Tensor, "*h r r"]) -> Float[Tensor, "*h r r"]:
    """T, triangular, with TᵀT these inner products (Cholesky): what is below 1e-7 of the longest column is rounding.

    >>> root(torch.tensor([[25.0, 25.0], [25.0, 25.0]]).double()).round(decimals=3).tolist()
    [[5.0, 5.0], [0.0, 0.0]]
    """
    least = 1e-14 * gram.diagonal(dim1=-2, dim2=-1).amax(-1) + torch.finfo(gram.dtype).tiny
    return torch.linalg.cholesky_ex(gram + torch.diag_embed(least[..., None].expand(gram.shape[:-1])), upper=True).L


def even_root(gram: Float[Tensor, "*h r r"]) -> tuple[Float[Tensor, "*h r r"], Float[Tensor, "*h r r"]]:
    """T with TᵀT these inner products, by their eigenvectors, and its inverse on what is there: below 1e-14 of the largest is rounding."""
    values, vectors = torch.linalg.eigh(gram)
    there = values > 1e-14 * values[..., -1:].clamp(min=torch.finfo(values.dtype).tiny)
    size = torch.where(there, values, 0).sqrt()
    inverse = torch.where(there, 1 / torch.where(there, size, 1), 0)
    return size[..., None] * vectors.mT, vectors * inverse[..., None, :]


def _gram(A: Float[Tensor, "*h d r"]) -> Float[Tensor, "*h r r"]:
    A = A.double()
    return A.mT @ A


def _on_cores(run: Callable[[Tensor], tuple[Tensor, ...]], A: Float[Tensor, "*h m n"]) -> tuple[Tensor, ...]:
    """`run` of matrices of the CPU as they are; of others on its cores, and back."""
    if A.device.type == "cpu":
        return run(A)
    return tuple(x.to(A.device) for x in in_parts(run, A.cpu(), torch.get_num_threads()))


def in_parts(run: Callable[[Tensor], tuple[Tensor, ...]], A: Float[Tensor, "*h m n"], parts: int) -> tuple[Tensor, ...]:
    """`run` of a batch of matrices, in so many parts at the same time."""
    some = A.reshape(-1, *A.shape[-2:]).tensor_split(max(1, min(parts, A[..., 0, 0].numel())))
    found = zip(*on_cores(run, some), strict=True)
    return tuple(torch.cat(each).unflatten(0, A.shape[:-2]) for each in found)
