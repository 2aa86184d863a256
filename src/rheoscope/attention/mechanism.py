"""A mechanism: the definition of attention as a value that can be called.

`reference` (in `definition`) says what it computes; calling it takes the fastest way that is exactly equal (`lower/`).
What that way is depends on the parts and on the shapes of a call: it is planned once and remembered, and `explain` says
which one it is and why.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from rheoscope.attention.call_checks import check_call, check_finite
from rheoscope.attention.definition import Definition, Masked, reference
from rheoscope.attention.feature_maps import Feature, Identity
from rheoscope.attention.lower.choice import Choice, choose
from rheoscope.attention.lower.plan import Call, Plan, call_of, planned
from rheoscope.attention.mask import Mask
from rheoscope.attention.memory import fitting
from rheoscope.attention.normaliser.domain import Normaliser
from rheoscope.attention.position import Position
from rheoscope.attention.python_functions import as_score, as_value
from rheoscope.attention.score import Score

REMEMBERED = 64
"""Plans that one mechanism keeps; a text that grows token by token would keep one a token."""


@dataclass(frozen=True, eq=False)
class Mechanism(Definition):
    """One attention mechanism: five parts, no options.

    **Formula** o_i = sum_j nu(f(q_i, k_j) + b_ij) g(v_j), forbidden keys at -inf.

    **Shapes** q (b, h, m, d), k (b, g, n, c), v (b, g, n, e) give o (b, h, m, r) with rows g(v) of width r, e where values
    are not mapped; g divides h (grouped heads), m and n may differ (cross attention) wherever `mechanism.domain` allows it,
    d and c where the score maps both (additive, bilinear, relation).

    **Functions** any Python function is a score, f(q, k) from (b, h, m, d) and (b, h, n, c) to (b, h, m, n), or a value map,
    g(v) from (b, h, n, e) to (b, h, n, r): `Mechanism(score=f, value=g)`. Autograd differentiates it; fused kernels refuse
    a score that they cannot look into, and `explain` says so.

    **Laws** are declared by name for each named mechanism in `zoo.py` and tested by one battery.

    **Siblings** `rheoscope.mechanism(name)` gives the named ones; `dataclasses.replace` changes one part of any.

    >>> import torch, rheoscope as rs
    >>> q, k, v = torch.randn(3, 1, 2, 5, 4).unbind(0)
    >>> rs.mechanism("metric", sigma=2.0)(q, k, v, mask="causal").shape
    torch.Size([1, 2, 5, 4])
    >>> city = rs.Mechanism(score=lambda q, k: -torch.cdist(q, k, p=1), value=torch.tanh)
    >>> city(q, k, v, mask="causal").shape
    torch.Size([1, 2, 5, 4])
    """

    def __init__(
        self,
        score: Score | Callable[[Tensor, Tensor], Tensor] = Definition.score,
        mask: Mask = Definition.mask,
        position: Position = Definition.position,
        normaliser: Normaliser = Definition.normaliser,
        value: Feature | Callable[[Tensor], Tensor] = Definition.value,
    ) -> None:
        made = {"score": as_score(score), "value": as_value(value)}
        for name, part in {"mask": mask, "position": position, "normaliser": normaliser, **made}.items():
            object.__setattr__(self, name, part)  # frozen from now on

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Masked = None, lowering: str | None = None) -> Tensor:
        """The outputs (b, h, m, e), by the fastest lowering that equals the reference, or by the one named."""
        check_finite(q=q, k=k, v=v)
        return self.attend(q, k, v, mask, lowering)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Masked = None, lowering: str | None = None) -> Tensor:
        """As a call, without looking at every number first: for layers inside a model."""
        if torch.compiler.is_compiling():  # a graph is traced once: what would be remembered is its own
            mechanism = self.under(mask)
            check_call(mechanism, q, k, v)
            return choose(mechanism, q, k, v, lowering).run(mechanism, q, k, v)
        with fitting("attention of this shape", "a shorter text, or float16 and bfloat16 tokens"):
            return self.plan(q, k, v, mask, lowering).run(q, k, v)

    def plan(self, q: Tensor, k: Tensor, v: Tensor, mask: Masked = None, lowering: str | None = None) -> Plan:
        """The call of these shapes, checked and decided: `plan(q, k, v)` then runs any call like it.

        >>> import torch, rheoscope as rs
        >>> metric, q = rs.mechanism("metric"), torch.randn(1, 1, 4, 8)
        >>> plan = metric.plan(q, q, q, mask="causal")
        >>> plan is metric.plan(q + 1, q, q, mask="causal"), plan(q, q, q).shape
        (True, torch.Size([1, 1, 4, 8]))
        """
        if mask is not None and not isinstance(mask, str):  # a table would be kept alive by what remembers it
            return planned(self.under(mask), q, k, v, lowering)
        call = call_of(q, k, v)
        found = self._plans.get((mask, lowering, call))
        if found is None:
            if len(self._plans) >= REMEMBERED:
                self._plans.clear()
            # two threads may plan the same call; both go on with the first one's plan
            found = self._plans.setdefault((mask, lowering, call), planned(self.under(mask), q, k, v, lowering))
        return found

    @cached_property
    def _plans(self) -> dict[tuple[str | None, str | None, Call], Plan]:
        return {}

    def explain(self, q: Tensor, k: Tensor, v: Tensor, mask: Masked = None, lowering: str | None = None) -> Choice:
        """Which lowering these inputs take, why, and why not the others.

        >>> import torch, rheoscope as rs
        >>> q = torch.randn(1, 1, 4, 8)
        >>> print(rs.mechanism("scaled_dot").explain(q, q, q).name)
        sdpa
        """
        return self.plan(q, k, v, mask, lowering).choice

    def weights(self, q: Tensor, k: Tensor, mask: Masked = None) -> Tensor:
        """All weights (b, h, m, n) at once; `weight_statistics` answers for long texts without holding them.

        >>> import torch, rheoscope as rs
        >>> rs.mechanism("scaled_dot").weights(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4), mask="causal")
        tensor([[[[1.0000, 0.0000],
                  [0.5000, 0.5000]]]])
        """
        mechanism = replace(self.under(mask), value=Identity())
        check_finite(q=q, k=k)
        check_call(mechanism, q, k, k)
        return reference(mechanism, q, k, k)[1]
