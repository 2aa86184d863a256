"""A survey of all named mechanisms on one point cloud: law violations, chosen lowering and weights."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.laws import LAWS
from rheoscope.attention.lower.choice import Choice
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.zoo import ZOO, ZooEntry


@dataclass(frozen=True, eq=False)
class SurveyRow:
    """One mechanism: the violation of each declared law, the chosen lowering, its weights on the point cloud."""

    entry: ZooEntry
    mechanism: Mechanism
    violations: dict[str, float]
    choice: Choice
    weights: Float[Tensor, "n n"]

    @property
    def n_laws_satisfied(self) -> int:
        return sum(self.violations[law] <= LAWS[law].tolerance for law in self.violations)

    @property
    def broken_laws(self) -> list[str]:
        return [law for law in self.violations if not self.violations[law] <= LAWS[law].tolerance]


EXAMPLE_TENSORS: dict[str, dict[str, Tensor]] = {
    "bilinear": {"B": torch.tensor([[0.2, -1.6], [1.1, 0.3]], dtype=torch.float64)},
    "mahalanobis": {"P": torch.tensor([[2.2, -1.2], [-1.2, 0.8]], dtype=torch.float64)},
}
"""Tensors for the picture: at their initial identity both mechanisms equal their simpler variants."""


def example_cloud(n: int = 14, seed: int = 7) -> Float[Tensor, "n 2"]:
    """A small point cloud in the plane, in float64: three loose groups."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.tensor([[1.3, 0.9], [-1.2, 1.0], [0.3, -1.5]], dtype=torch.float64)
    points = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    return centres[torch.arange(n) % 3] + 0.55 * points


def survey_mechanisms(points: Float[Tensor, "n 2"], tokens: int = 2048, width: int = 64) -> list[SurveyRow]:
    """Check laws on `points` (float64); choose lowerings for `tokens` tokens of width `width` in eight heads (float32)."""
    x = points[None, None]
    long_tokens = torch.empty(1, 8, tokens, width, device="cpu")
    rows = []
    for entry in ZOO.values():
        example_mechanism = entry(
            **EXAMPLE_TENSORS.get(entry.name, {"dim": points.shape[-1]} if entry.needs_dim else {})
        )
        long_mechanism = entry(**({"dim": width} if entry.needs_dim else {}))
        violations = {law: LAWS[law].violation(example_mechanism, x, x, x) for law in entry.laws}
        choice = long_mechanism.explain(
            long_tokens, long_tokens, long_tokens, mask="causal" if long_mechanism.domain.allows_masks else None
        )
        rows.append(SurveyRow(entry, example_mechanism, violations, choice, example_mechanism.weights(x, x)[0, 0]))
    return rows
