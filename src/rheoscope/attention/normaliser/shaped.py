"""alpha I + beta softmax(s) - gamma C, with C uniform attention: the Shaped Transformer (arXiv:2306.17759)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from rheoscope.attention.normaliser.domain import (
    Domain,
    Normaliser,
    Pullback,
    allowed_indicator,
    softmax,
    softmax_pullback,
)
from rheoscope.shapes import Scores, Weights


@dataclass(frozen=True, eq=False)
class Shaped(Normaliser):
    """Close to the identity at initialisation, where softmax is close to C, so depth does not collapse the tokens.

    Output: alpha v_i + beta attention_i - gamma (mean of the allowed v). Weights may be negative.
    """

    alpha: float = 1.0
    beta: float = 1.0
    gamma: float = 1.0

    domain: ClassVar[Domain] = Domain(requires_square=True, has_negative_weights=True)
    is_shift_invariant: ClassVar[bool] = True
    is_rowwise: ClassVar[bool] = False

    def __call__(self, s: Scores) -> Weights:
        allowed = allowed_indicator(s)
        identity = torch.eye(s.shape[-1], dtype=s.dtype, device=s.device) * allowed
        uniform = allowed / allowed.sum(-1, keepdim=True).clamp(min=1)
        return self.alpha * identity + self.beta * softmax(s) - self.gamma * uniform

    def pullback(self, s: Scores, a: Weights, d: Weights) -> Pullback:
        return self.beta * softmax_pullback(softmax(s), d), {}

    @property
    def mixture_coefficients(self) -> tuple[float, float, float]:
        return self.alpha, self.beta, self.gamma

    def select_heads(self, heads: list[int]) -> "Shaped":
        return self
