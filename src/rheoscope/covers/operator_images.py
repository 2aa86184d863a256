"""The images of a cloud under the operators of heads, in the coordinates of each head."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.space.decompositions import root_and_inverse, svd
from rheoscope.space.head import Heads, matmul_per_head
from rheoscope.space.operator import RANK_TOLERANCE, Factored
from rheoscope.space.safe_arithmetic import at_least_float32


@dataclass(frozen=True, eq=False)
class OperatorImage:
    """The images x̂A of a cloud under one operator of every head, A = U S Vᵀ = left · right.

    `read(x̂)` = x̂ · left is q (times the scale), k or v. Heads that share keys or values share `left`. The columns of
    left · `whitening` are orthonormal: they are U, which spans the directions that A reads. `singular_values` (S) are their
    stretches. U and S are 0 beyond the rank of A.
    """

    left: Float[Tensor, "g d k"]
    whitening: Float[Tensor, "h k r"]
    singular_values: Float[Tensor, "h r"]

    def read(self, cloud: Float[Tensor, "*t n d"]) -> Float[Tensor, "*t g n k"]:
        """q, k or v, once for all heads that share it."""
        return matmul_per_head(cloud, self.left)

    def project_vectors(self, vectors: Float[Tensor, "*t g n k"]) -> Float[Tensor, "*t h n r"]:
        """x̂ U from q, k or v."""
        return self._per_head(vectors) @ self.whitening

    def project(self, cloud: Float[Tensor, "*t n d"]) -> Float[Tensor, "*t h n r"]:
        """x̂ U, the cloud projected to the directions that A reads."""
        return self.project_vectors(self.read(cloud))

    def apply(self, cloud: Float[Tensor, "*t n d"]) -> Float[Tensor, "*t h n r"]:
        """x̂ U S, which has the same distances as x̂A."""
        return self._per_head(self.read(cloud)) @ (self.whitening * self.singular_values[:, None])

    @property
    def basis(self) -> Float[Tensor, "h d r"]:
        """U."""
        return self._per_head(self.left) @ self.whitening

    @property
    def rank(self) -> Float[Tensor, " h"]:
        return (self.singular_values > 0).sum(-1).double()

    def float(self) -> "OperatorImage":
        """The same in float32."""
        return OperatorImage(self.left.float(), self.whitening.float(), self.singular_values.float())

    def to(self, device: torch.device) -> "OperatorImage":
        """The same on a device."""
        return OperatorImage(self.left.to(device), self.whitening.to(device), self.singular_values.to(device))

    def _per_head(self, x: Float[Tensor, "*t g n k"]) -> Float[Tensor, "*t h n k"]:
        n_sharing = len(self.whitening) // x.shape[-3]
        return x if n_sharing == 1 else x.repeat_interleave(n_sharing, -3)


def images_of_heads(heads: Heads) -> list[OperatorImage]:
    """The query, key and content images of every head of a layer: x̂M, x̂Mᵀ and x̂F."""
    return images_of_operators(heads.M(), heads.F())


def images_of_operators(M: Factored, F: Factored) -> list[OperatorImage]:
    """The query, key and content images under the operators of some heads."""
    return [*relevance_images(M), content_image(F)]


def image_of_heads(heads: Heads, name: str) -> OperatorImage:
    """One of the images of every head of a layer: "query", "key" or "content"."""
    return content_image(heads.F()) if name == "content" else relevance_images(heads.M())[("query", "key").index(name)]


def relevance_images(M: Factored) -> tuple[OperatorImage, OperatorImage]:
    """The query and key images."""
    queries, keys = (at_least_float32(x).double() for x in (M.left, M.right.mT))
    keys = _without_repeats(keys)
    (query_root, query_inverse), (key_root, key_inverse) = root_and_inverse(queries), _root_per_head(keys, len(queries))
    u, s, vh = _truncated_svd(query_root @ key_root.mT)
    return OperatorImage(queries, query_inverse @ u, s), OperatorImage(keys, key_inverse @ vh.mT, s)


def content_image(F: Factored) -> OperatorImage:
    """The content image."""
    values, outputs = (at_least_float32(x).double() for x in (F.left, F.right.mT))
    values = _without_repeats(values)
    (value_root, value_inverse), (output_root, _) = _root_per_head(values, len(outputs)), root_and_inverse(outputs)
    u, s, _ = _truncated_svd(value_root @ output_root.mT)
    return OperatorImage(values, value_inverse @ u, s)


def _without_repeats(left: Float[Tensor, "h d k"]) -> Float[Tensor, "g d k"]:
    """One matrix for every group of successive heads that share it; all of them if the groups differ in size."""
    size = next((head for head in range(1, len(left)) if not torch.equal(left[head], left[0])), len(left))
    if len(left) % size or size == 1:
        return left
    shared = left[::size]
    return shared if torch.equal(shared.repeat_interleave(size, 0), left) else left


def _root_per_head(left: Float[Tensor, "g d k"], n_heads: int) -> tuple[Tensor, Tensor]:
    """`root_and_inverse` for every head, from the matrices of the groups."""
    root, inverse = (x.repeat_interleave(n_heads // len(left), 0) for x in root_and_inverse(left))
    return root, inverse


def _truncated_svd(
    A: Float[Tensor, "h k l"],
) -> tuple[Float[Tensor, "h k r"], Float[Tensor, "h r"], Float[Tensor, "h r l"]]:
    """The SVD with zeros beyond the rank. It is that of left · right if A = T_left T_rightᵀ, see `root_and_inverse`."""
    u, s, vh = svd(A)
    is_nonzero = s > RANK_TOLERANCE * s[..., :1]
    return u * is_nonzero[..., None, :], s * is_nonzero, vh * is_nonzero[..., None]
