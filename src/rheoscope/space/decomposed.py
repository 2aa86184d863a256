"""Decompositions of many small matrices (heads are 64 wide): by LAPACK on the cores of the CPU, wherever the matrices are.

A GPU takes 20 ms for the singular vectors of 16 such matrices, one core of a CPU 1 ms for one. What a GPU is good at, the
inner products of long columns, stays there: of a matrix of many rows only its r x r inner products travel.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from jaxtyping import Complex, Float
from torch import Tensor

Thing = TypeVar("Thing")
Made = TypeVar("Made")


def side_by_side(run: Callable[[Thing], Made], things: Iterable[Thing]) -> Iterator[Made]:
    """Several at the same time, one core each: LAPACK on r x r matrices gains nothing from two cores on one matrix.

    >>> list(side_by_side(abs, [-1, 2]))
    [1, 2]
    """
    cores = torch.get_num_threads()
    if cores == 1:
        yield from map(run, things)
        return
    try:
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from pool.map(run, things)
    finally:
        torch.set_num_threads(cores)  # the workers' call also set what later threads begin with


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


def triangle(A: Float[Tensor, "*h d r"]) -> Float[Tensor, "*h k r"]:
    """The triangular factor T of A = Q T, k = min(d, r): all that singular values need to know of A.

    On a GPU from the inner products of its columns, in float64: TᵀT = AᵀA.

    >>> triangle(torch.tensor([[3.0], [4.0]])).abs()
    tensor([[5.]])
    """
    if A.device.type == "cpu" or A.shape[-2] < A.shape[-1]:
        return torch.linalg.qr(A, mode="r")[1]
    (found,) = _on_cores(lambda gram: (torch.linalg.qr(_root(gram)[0], mode="r")[1],), _gram(A))
    return found.to(A.dtype)


def orthonormal(A: Float[Tensor, "*h d r"]) -> tuple[Float[Tensor, "*h d k"], Float[Tensor, "*h k r"]]:
    """Q, T with A = Q T, columns of Q orthonormal; on a GPU 0 where A has no more directions but for rounding."""
    if A.device.type == "cpu" or A.shape[-2] < A.shape[-1]:
        Q, T = torch.linalg.qr(A)
        return Q, T
    root, inverse = _on_cores(_root, _gram(A))
    return (A.double() @ inverse).to(A.dtype), root.to(A.dtype)


def _gram(A: Float[Tensor, "*h d r"]) -> Float[Tensor, "*h r r"]:
    A = A.double()
    return A.mT @ A


def _root(gram: Float[Tensor, "*h r r"]) -> tuple[Float[Tensor, "*h r r"], Float[Tensor, "*h r r"]]:
    """T with TᵀT the inner products, and its inverse on what is there: eigenvalues below 1e-14 of the largest are rounding."""
    values, vectors = torch.linalg.eigh(gram)
    there = values > 1e-14 * values[..., -1:].clamp(min=torch.finfo(values.dtype).tiny)
    size = torch.where(there, values, 0).sqrt()
    inverse = torch.where(there, 1 / torch.where(there, size, 1), 0)
    return size[..., None] * vectors.mT, vectors * inverse[..., None, :]


def _on_cores(run: Callable[[Tensor], tuple[Tensor, ...]], A: Float[Tensor, "*h m n"]) -> tuple[Tensor, ...]:
    """`run` of matrices of the CPU as they are; of others in as many parts as there are cores, and back."""
    if A.device.type == "cpu":
        return run(A)
    parts = A.reshape(-1, *A.shape[-2:]).cpu().tensor_split(max(1, min(torch.get_num_threads(), A[..., 0, 0].numel())))
    found = zip(*side_by_side(run, parts), strict=True)
    return tuple(torch.cat(each).unflatten(0, A.shape[:-2]).to(A.device) for each in found)
