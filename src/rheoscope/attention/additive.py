"""The additive score: queries and keys meet inside a hidden layer, so they may differ in width."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.feature_maps import of_heads, product
from rheoscope.attention.score import Flops, Pulled, Score
from rheoscope.shapes import Keys, Queries, Scores


@dataclass(frozen=True, eq=False)
class Additive(Score):
    """f(q, k) = tanh(q W + k U) . w, the first neural attention (Bahdanau, arXiv:1409.0473).

    W maps queries and U keys, of any two widths, to a hidden width a (one map, or one a head); w weighs the hidden units.
    """

    W: Float[Tensor, "*h d a"]
    U: Float[Tensor, "*h c a"]
    w: Float[Tensor, "*h a 1"]

    bilinear = None
    linear_in_keys = False

    @property
    def held(self) -> int:
        return self.W.shape[-1]

    def _hidden(self, q: Queries, k: Keys) -> Float[Tensor, "b h m n a"]:
        return torch.tanh((q @ self.W.to(q.dtype))[..., :, None, :] + (k @ self.U.to(k.dtype))[..., None, :, :])

    def __call__(self, q: Queries, k: Keys) -> Scores:
        return (self._hidden(q, k) @ self.w.to(q.dtype).unsqueeze(-3)).squeeze(-1)

    def tanh(self, q: Queries, k: Keys) -> tuple[Tensor, Tensor, Tensor]:
        w = self.w.to(q.dtype).squeeze(-1)
        return q @ self.W.to(q.dtype), k @ self.U.to(k.dtype), w[None] if w.ndim == 1 else w

    def pull(self, q: Queries, k: Keys, r: Scores) -> Pulled:
        t = self._hidden(q, k)
        before = (1 - t * t) * self.w.to(q.dtype).mT.unsqueeze(-3) * r[..., None]
        at_q, at_k = before.sum(-2), before.sum(-3)
        tensors = {
            "W": (q.mT @ at_q).sum_to_size(self.W.shape),
            "U": (k.mT @ at_k).sum_to_size(self.U.shape),
            "w": (t * r[..., None]).sum((-3, -2))[..., None].sum_to_size(self.w.shape),
        }
        return at_q @ self.W.to(q.dtype).mT, at_k @ self.U.to(k.dtype).mT, tensors

    def fit(self, q: Tensor, k: Tensor) -> None:
        """Any two widths: whether they are those of W and U is seen when it is tried."""

    def scaled(self, by: float) -> "Additive":
        return self

    def of_heads(self, some: list[int]) -> "Additive":
        return replace(self, **{name: of_heads(getattr(self, name), some, -3) for name in ("W", "U", "w")})

    def flops(self, d: int) -> Flops:
        return Flops(2 * self.W.shape[-1], product(self.W), product(self.U))
