"""alpha I + beta softmax(s) - gamma C, C the attention of zero logits: the Shaped Transformer (arXiv:2306.17759)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from rheoscope.attention.normaliser.domain import Domain, Normaliser, Pulled, permitted, softmax, softmax_pull
from rheoscope.shapes import Scores, Weights


@dataclass(frozen=True, eq=False)
class Shaped(Normaliser):
    """At initialisation softmax is nearly C, so the whole is nearly the identity and depth does not collapse the tokens.

    Output: alpha v_i + beta attention_i - gamma (mean of the permitted v). Weights may be negative.
    """

    alpha: float = 1.0
    beta: float = 1.0
    gamma: float = 1.0

    domain: ClassVar[Domain] = Domain(square=True, signed=True)
    shift_invariant: ClassVar[bool] = True
    rowwise: ClassVar[bool] = False

    def __call__(self, s: Scores) -> Weights:
        there = permitted(s)
        itself = torch.eye(s.shape[-1], dtype=s.dtype, device=s.device) * there
        uniform = there / there.sum(-1, keepdim=True).clamp(min=1)
        return self.alpha * itself + self.beta * softmax(s) - self.gamma * uniform

    def pull(self, s: Scores, a: Weights, d: Weights) -> Pulled:
        return self.beta * softmax_pull(softmax(s), d), {}

    @property
    def mixture(self) -> tuple[float, float, float]:
        return self.alpha, self.beta, self.gamma

    def of_heads(self, some: list[int]) -> "Shaped":
        return self
