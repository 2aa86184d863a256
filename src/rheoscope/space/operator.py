"""Operators on E as two thin factors: A = L R with L (d, r), R (r, d), never a (d, d) matrix.

Rows are vectors, so A maps x to x A = (x L) R, and as a bilinear form it is x A y^T. Traces, norms, singular values and
eigenvalues come from r x r matrices. Leading axes are batch axes: all heads of a layer are one Factored.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.decompositions import (
    eigh,
    eigvals,
    eigvalsh,
    orthonormal_factors,
    qr,
    svd,
    svdvals,
    triangular_factor,
)
from rheoscope.space.safe_arithmetic import at_least_float32

RANK_TOLERANCE = 1e-6
"""Relative to the largest singular value: the error of folding gains and means into float32 weights lies below it."""


@dataclass(frozen=True, eq=False)
class Factored:
    """A low-rank operator A = left @ right on row vectors, batched over leading axes.

    **Returns** norm, trace, singular values, eigenvalues, symmetric part and best low-rank approximation, each at the cost of
    its rank.

    **Laws** Every result equals that of `dense()`. `(A @ B).dense() == A.dense() @ B.dense()`. A gauge (L G, G^-1 R) changes
    nothing.

    >>> import torch
    >>> A = Factored(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0, 4.0]]))
    >>> A.tr().item(), round(A.norm().item() ** 2, 3)
    (11.0, 125.0)
    """

    left: Float[Tensor, "*h d r"]
    right: Float[Tensor, "*h r e"]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {' × '.join(map(str, self.shape))} of rank {self.left.shape[-1]} or less>"

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.left.shape[:-1], self.right.shape[-1])

    def __getitem__(self, index: int | slice) -> "Factored":
        """One operator, or several, of a batch."""
        return Factored(self.left[index], self.right[index])

    def __matmul__(self, other: "Factored") -> "Factored":
        """A, then B: x (A B), with the smaller of both ranks."""
        middle = self.right @ other.left
        if self.left.shape[-1] <= other.right.shape[-2]:
            return Factored(self.left, middle @ other.right)
        return Factored(self.left @ middle, other.right)

    def __add__(self, other: "Factored") -> "Factored":
        """A + B; ranks add."""
        return Factored(torch.cat([self.left, other.left], -1), torch.cat([self.right, other.right], -2))

    def __mul__(self, number: float | int) -> "Factored":
        return Factored(self.left * number, self.right)

    __rmul__ = __mul__

    @property
    def T(self) -> "Factored":
        return Factored(self.right.mT, self.left.mT)

    def dense(self) -> Float[Tensor, "*h d e"]:
        """The (d, e) matrix itself, for small d and for tests."""
        return self.left @ self.right

    def apply(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*hn e"]:
        """x A for rows x; one cloud (n, d) through a batch of operators returns (h, n, e)."""
        return (x @ self.left) @ self.right

    def bilinear_form(self, x: Float[Tensor, "m d"], y: Float[Tensor, "n e"]) -> Float[Tensor, "*h m n"]:
        """x A y^T for clouds x and y."""
        return (x @ self.left) @ (self.right @ y.mT)

    @cached_property
    def _factors_float64(self) -> tuple[Float[Tensor, "*h d r"], Float[Tensor, "*h r e"]]:
        return self.left.double(), self.right.double()

    @cached_property
    def grams(self) -> tuple[Float[Tensor, "*h r r"], Float[Tensor, "*h r r"]]:
        """L^T L and R R^T in float64, which determine norms."""
        left, right = self._factors_float64
        return left.mT @ left, right @ right.mT

    @cached_property
    def right_left(self) -> Float[Tensor, "*h r r"]:
        """R L in float64, which determines traces and eigenvalues."""
        self._check_square("R L")
        left, right = self._factors_float64
        return right @ left

    def tr(self) -> Float[Tensor, "*h"]:
        """tr A = tr (R L)."""
        self._check_square("tr")
        return (self.right.mT * self.left).sum((-2, -1))

    def inner(self, other: "Factored") -> Float[Tensor, "*h"]:
        """<A, B> = tr(A B^T), the Frobenius inner product."""
        return ((self.left.mT @ other.left) * (self.right @ other.right.mT)).sum((-2, -1))

    def norm(self) -> Float[Tensor, "*h"]:
        """The Frobenius norm: |L R|^2 = <L^T L, R R^T>."""
        left, right = self.grams
        return (left * right).sum((-2, -1)).clamp(min=0).sqrt().to(self.left.dtype)

    def at_least_float32(self) -> "Factored":
        """The same in float32 or better, the dtype of every decomposition."""
        return Factored(at_least_float32(self.left), at_least_float32(self.right))

    def svd(self) -> tuple[Float[Tensor, "*h d r"], Float[Tensor, "*h r"], Float[Tensor, "*h r e"]]:
        """U, s, Vh with A = U diag(s) Vh, s in descending order, r = the number of columns of the factors (at most d)."""
        (q, a), (p, b) = orthonormal_factors(self.left), orthonormal_factors(self.right.mT)
        u, s, vh = svd(a @ b.mT)
        return q @ u, s, vh @ p.mT

    def truncated_svd(self) -> tuple[Float[Tensor, "*h d r"], Float[Tensor, "*h r"], Float[Tensor, "*h r e"]]:
        """The SVD without rounding errors: U spans the input space of A, Vh its output space, with zeros beyond the rank.

        Singular values below RANK_TOLERANCE (1e-6) of the largest count as 0. In float32, smaller true values cannot be told from
        rounding, so a head whose spectrum falls that steeply has a lower rank here than in exact arithmetic.

        Factors of r columns may have a product of lower rank; the columns of QR and SVD beyond it are arbitrary.

        >>> A = Factored(torch.tensor([[1.0, 0.0], [2.0, 0.0]]), torch.eye(2))
        >>> A.truncated_svd()[0].norm(dim=0).round(decimals=3).tolist()
        [1.0, 0.0]
        """
        u, s, vh = self.svd()
        is_nonzero = s > RANK_TOLERANCE * s[..., :1]
        return u * is_nonzero[..., None, :], s * is_nonzero, vh * is_nonzero[..., None]

    def singular_values(self) -> Float[Tensor, "*h r"]:
        """Singular values in descending order."""
        return self._singular_values

    @cached_property
    def _singular_values(self) -> Tensor:
        # triangular factors only: computing orthonormal columns would double the cost of QR
        return svdvals(triangular_factor(self.left) @ triangular_factor(self.right.mT).mT)

    def eigenvalues(self) -> Complex[Tensor, "*h r"]:
        """The eigenvalues that may be nonzero: those of R L."""
        self._check_square("eigenvalues")
        return eigvals(self.right @ self.left)

    def symmetry(self) -> Float[Tensor, "*h"]:
        """s = tr(A A) / tr(A A^T) in [-1, 1]: 1 symmetric, -1 skew, about 0 for a random operator; 0 for A = 0."""
        self._check_square("symmetry")
        return symmetry_of_products(*self.grams, self.right_left).to(self.left.dtype)

    def symmetric_part(self) -> "Factored":
        """(A + A^T)/2, of rank 2r."""
        self._check_square("symmetric")
        return 0.5 * (self + self.T)

    def skew_part(self) -> "Factored":
        """(A - A^T)/2, of rank 2r."""
        self._check_square("skew")
        return 0.5 * (self + self.T * -1.0)

    def symmetric_eigenvalues(self) -> Float[Tensor, "*h rr"]:
        """The eigenvalues of the symmetric part in ascending order, without the zeros outside its range."""
        a, b = self._joint_factors
        return eigvalsh(_symmetrised(a @ b.mT).double()).to(a.dtype)  # float32 may not converge

    def positive_part(self) -> "Factored":
        """The positive part of the symmetric part: the nearest positive semi-definite operator to A."""
        self._check_square("the symmetric part")
        basis, factor = qr(torch.cat([self.left, self.right.mT], -1))
        a, b = factor.tensor_split((self.left.shape[-1],), -1)
        values, vectors = (x.to(a.dtype) for x in eigh(_symmetrised(a @ b.mT).double()))
        left = basis @ vectors * values.clamp(min=0)[..., None, :]
        return Factored(left, (basis @ vectors).mT)

    def truncate_rank(self, r: int) -> "Factored":
        """The best approximation of rank r (Eckart-Young)."""
        if r < 1:
            raise RheoscopeError(
                Message("a rank must be at least 1, got {received}", received=r), Advice("truncate_rank(1)")
            )
        u, s, vh = self.svd()
        return Factored(u[..., :r] * s[..., None, :r], vh[..., :r, :])

    def stable_rank(self) -> Float[Tensor, "*h"]:
        """|A|_F^2 / |A|_2^2, in [1, r]; 0 for A = 0."""
        s = self.singular_values()
        return s.square().sum(-1) / s[..., 0].square().clamp(min=torch.finfo(s.dtype).tiny)

    def row_norms(self) -> Float[Tensor, "*h d"]:
        """The length of every row of A."""
        return torch.linalg.vecdot(self.left @ self.grams[1].to(self.left.dtype), self.left).clamp(min=0).sqrt()

    def column_norms(self) -> Float[Tensor, "*h e"]:
        """The length of every column of A."""
        return (
            torch.linalg.vecdot(self.grams[0].to(self.right.dtype) @ self.right, self.right, dim=-2).clamp(min=0).sqrt()
        )

    @cached_property
    def _joint_factors(self) -> tuple[Float[Tensor, "*h k r"], Float[Tensor, "*h k r"]]:
        """a, b with A = Q a b^T Q^T, where the orthonormal columns of Q span the rows and columns of A."""
        self._check_square("the symmetric part")
        a, b = triangular_factor(torch.cat([self.left, self.right.mT], -1)).tensor_split((self.left.shape[-1],), -1)
        return a, b

    def _check_square(self, operation: str) -> None:
        if self.left.shape[-2] != self.right.shape[-1]:
            raise RheoscopeError(
                Message(
                    "{operation} needs a square operator, got {rows} x {columns}",
                    operation=operation,
                    rows=self.left.shape[-2],
                    columns=self.right.shape[-1],
                )
            )


def symmetry_of_products(
    left_gram: Float[Tensor, "*h r r"], right_gram: Float[Tensor, "*h r r"], right_left: Float[Tensor, "*h r r"]
) -> Float[Tensor, "*h"]:
    """tr(A A) / tr(A A^T) from L^T L, R R^T and R L; 0 for A = 0."""
    norm_squared = (left_gram * right_gram).sum((-2, -1))
    trace_of_square = (right_left * right_left.mT).sum((-2, -1))
    return torch.where(norm_squared > 0, trace_of_square / torch.where(norm_squared > 0, norm_squared, 1), 0)


def _symmetrised(A: Float[Tensor, "*h k k"]) -> Float[Tensor, "*h k k"]:
    return (A + A.mT) / 2
