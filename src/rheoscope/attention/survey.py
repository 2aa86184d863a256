"""Every named mechanism looked at on one cloud: are its laws kept, how does it run here, what weights does it give?"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.laws import LAWS
from rheoscope.attention.lower.choice import Choice
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.zoo import ZOO, Named


@dataclass(frozen=True, eq=False)
class Surveyed:
    """One row: the mechanism, the violation of each law it declares, the lowering it takes, its weights on the cloud."""

    named: Named
    mechanism: Mechanism
    violations: dict[str, float]
    choice: Choice
    weights: Float[Tensor, "n n"]

    @property
    def kept(self) -> int:
        return sum(self.violations[law] <= LAWS[law].tolerance for law in self.violations)

    @property
    def broken(self) -> list[str]:
        return [law for law in self.violations if not self.violations[law] <= LAWS[law].tolerance]


SHOWN: dict[str, dict[str, Tensor]] = {
    "bilinear": {"B": torch.tensor([[0.2, -1.6], [1.1, 0.3]], dtype=torch.float64)},
    "mahalanobis": {"P": torch.tensor([[2.2, -1.2], [-1.2, 0.8]], dtype=torch.float64)},
}
"""Tensors for the picture: both mechanisms start at the identity, where they look like their plain siblings."""


def cloud(n: int = 14, seed: int = 7) -> Float[Tensor, "n 2"]:
    """A small cloud of tokens in the plane, in float64: three loose groups and a few strays."""
    source = torch.Generator().manual_seed(seed)
    centres = torch.tensor([[1.3, 0.9], [-1.2, 1.0], [0.3, -1.5]], dtype=torch.float64)
    points = torch.randn(n, 2, generator=source, dtype=torch.float64)
    return centres[torch.arange(n) % 3] + 0.55 * points


def survey(points: Float[Tensor, "n 2"], tokens: int = 2048, width: int = 64) -> list[Surveyed]:
    """Laws on the cloud (float64), and the lowering for `tokens` tokens of width `width` in eight heads (float32)."""
    x = points[None, None]
    long = torch.empty(1, 8, tokens, width, device="cpu")
    rows = []
    for named in ZOO.values():
        small = named(**SHOWN.get(named.name, {"dim": points.shape[-1]} if named.needs_dim else {}))
        large = named(**({"dim": width} if named.needs_dim else {}))
        violations = {law: LAWS[law].violation(small, x, x, x) for law in named.laws}
        choice = large.explain(long, long, long, mask="causal" if large.domain.masked else None)
        rows.append(Surveyed(named, small, violations, choice, small.weights(x, x)[0, 0]))
    return rows
