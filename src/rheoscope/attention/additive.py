"""The additive (Bahdanau) score, in which queries and keys may differ in width."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.feature_maps import index_heads, matrix_flops
from rheoscope.attention.score import Flops, Pullback, Score
from rheoscope.shapes import Keys, Queries, Scores


@dataclass(frozen=True, eq=False)
class Additive(Score):
    """f(q, k) = tanh(q W + k U) . w, the first neural attention (Bahdanau, arXiv:1409.0473).

    W maps queries and U maps keys to a hidden width a, with one map for all heads or one per head. w weights the hidden units.
    """

    W: Float[Tensor, "*h d a"]
    U: Float[Tensor, "*h c a"]
    w: Float[Tensor, "*h a 1"]

    bilinear_maps = None
    is_linear_in_keys = False

    @property
    def numbers_per_pair(self) -> int:
        return self.W.shape[-1]

    def _hidden(self, q: Queries, k: Keys) -> Float[Tensor, "b h m n a"]:
        return torch.tanh((q @ self.W.to(q.dtype))[..., :, None, :] + (k @ self.U.to(k.dtype))[..., None, :, :])

    def __call__(self, q: Queries, k: Keys) -> Scores:
        return (self._hidden(q, k) @ self.w.to(q.dtype).unsqueeze(-3)).squeeze(-1)

    def tanh_form(self, q: Queries, k: Keys) -> tuple[Tensor, Tensor, Tensor]:
        w = self.w.to(q.dtype).squeeze(-1)
        return q @ self.W.to(q.dtype), k @ self.U.to(k.dtype), w[None] if w.ndim == 1 else w

    def pullback(self, q: Queries, k: Keys, r: Scores) -> Pullback:
        hidden = self._hidden(q, k)
        grad_preactivation = (1 - hidden * hidden) * self.w.to(q.dtype).mT.unsqueeze(-3) * r[..., None]
        grad_hidden_q, grad_hidden_k = grad_preactivation.sum(-2), grad_preactivation.sum(-3)
        tensor_grads = {
            "W": (q.mT @ grad_hidden_q).sum_to_size(self.W.shape),
            "U": (k.mT @ grad_hidden_k).sum_to_size(self.U.shape),
            "w": (hidden * r[..., None]).sum((-3, -2))[..., None].sum_to_size(self.w.shape),
        }
        return grad_hidden_q @ self.W.to(q.dtype).mT, grad_hidden_k @ self.U.to(k.dtype).mT, tensor_grads

    def check_shapes(self, q: Tensor, k: Tensor) -> None:
        """Accept any two widths; a trial run later checks them against W and U."""

    def with_model_scale(self, scale: float) -> "Additive":
        return self

    def select_heads(self, heads: list[int]) -> "Additive":
        return replace(self, **{name: index_heads(getattr(self, name), heads, -3) for name in ("W", "U", "w")})

    def flops(self, d: int) -> Flops:
        return Flops(2 * self.W.shape[-1], matrix_flops(self.W), matrix_flops(self.U))
