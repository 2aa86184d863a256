"""`Mechanism`: a definition of attention that can be called.

`reference_attention` (in `definition.py`) defines the result. A call runs the fastest lowering that equals it (`lower/`).
The choice depends on the parts and on the shapes of a call. It is planned once and cached, and `explain` reports which
lowering was chosen and why.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from rheoscope.attention.call_checks import check_call, check_finite
from rheoscope.attention.definition import Definition, MaskLike, reference_attention
from rheoscope.attention.feature_maps import Feature, Identity
from rheoscope.attention.lower.choice import Choice, choose_lowering
from rheoscope.attention.lower.plan import CallSignature, Plan, call_signature, plan_call
from rheoscope.attention.mask import Mask, NoMask
from rheoscope.attention.memory import explain_out_of_memory
from rheoscope.attention.normaliser.domain import Normaliser
from rheoscope.attention.position import NoPosition, Position
from rheoscope.attention.python_functions import as_score, as_value
from rheoscope.attention.score import Score
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message

ATTENTION_TASK = Message("attention of this shape")
HALF_PRECISION = Advice("q.bfloat16(), k.bfloat16(), v.bfloat16()")
MAX_PLANS = 64
"""Plans that a mechanism caches; token-by-token generation would otherwise cache one plan per token."""


@dataclass(frozen=True, eq=False)
class Mechanism(Definition):
    """An attention mechanism composed of five parts.

    **Formula** o_i = sum_j nu(f(q_i, k_j) + b_ij) g(v_j), with masked keys at -inf.

    **Returns** The output o (b, h, m, r) for q (b, h, m, d), k (b, g, n, c) and v (b, g, n, e). r is the width of g(v),
    equal to e without a value map. g divides h (grouped heads). m and n may differ (cross attention) if
    `mechanism.domain` allows it. d and c may differ if the score maps both sides (additive, bilinear, relation).

    **Settings** `score` may be a Python function f(q, k) from (b, h, m, d) and (b, h, n, c) to (b, h, m, n). `value` may be
    a Python function g(v) from (b, h, n, e) to (b, h, n, r). Autograd differentiates both. Fused kernels cannot inspect a
    Python score, and `explain` reports that.

    **Laws** Each named mechanism declares its laws in `zoo.py`; one test suite checks them all.

    **See also** `rheoscope.mechanism(name)` creates the named ones; `dataclasses.replace` changes one part.

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
        converted_parts = {"score": as_score(score), "value": as_value(value)}
        for name, part in {"mask": mask, "position": position, "normaliser": normaliser, **converted_parts}.items():
            object.__setattr__(self, name, part)  # the instance is frozen

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: MaskLike = None, lowering: str | None = None) -> Tensor:
        """The output (b, h, m, e) from the fastest exact lowering, or from the named `lowering`."""
        check_finite(q=q, k=k, v=v)
        return self.attend(q, k, v, mask, lowering)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: MaskLike = None, lowering: str | None = None) -> Tensor:
        """The same as a call, without the check for finite inputs: for layers inside a model."""
        if torch.compiler.is_compiling():  # the graph is traced once and is its own cache
            mechanism = self.with_mask(mask)
            check_call(mechanism, q, k, v)
            return choose_lowering(mechanism, q, k, v, lowering).run(mechanism, q, k, v)
        with explain_out_of_memory(ATTENTION_TASK, HALF_PRECISION):
            return self.plan(q, k, v, mask, lowering).run(q, k, v)

    def plan(self, q: Tensor, k: Tensor, v: Tensor, mask: MaskLike = None, lowering: str | None = None) -> Plan:
        """Check a call of these shapes and choose its lowering; `plan(q, k, v)` then runs any such call.

        >>> import torch, rheoscope as rs
        >>> metric, q = rs.mechanism("metric"), torch.randn(1, 1, 4, 8)
        >>> plan = metric.plan(q, q, q, mask="causal")
        >>> plan is metric.plan(q + 1, q, q, mask="causal"), plan(q, q, q).shape
        (True, torch.Size([1, 1, 4, 8]))
        """
        if mask is not None and not isinstance(mask, str):  # caching the plan would keep the mask tensor alive
            return plan_call(self.with_mask(mask), q, k, v, lowering)
        call = call_signature(q, k, v)
        plan = self._plans.get((mask, lowering, call))
        if plan is None:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            # two threads may plan the same call; both use the first plan
            plan = self._plans.setdefault((mask, lowering, call), plan_call(self.with_mask(mask), q, k, v, lowering))
        return plan

    @cached_property
    def without_mask(self) -> "Mechanism":
        """The same mechanism without its mask; with its own plans, which are cached too."""
        return replace(self, mask=NoMask())

    @cached_property
    def without_position(self) -> "Mechanism":
        """The same mechanism without its position encoding."""
        return replace(self, position=NoPosition())

    @cached_property
    def _plans(self) -> dict[tuple[str | None, str | None, CallSignature], Plan]:
        return {}

    def explain(self, q: Tensor, k: Tensor, v: Tensor, mask: MaskLike = None, lowering: str | None = None) -> Choice:
        """The lowering chosen for these inputs, the reason, and why earlier lowerings were rejected.

        >>> import torch, rheoscope as rs
        >>> q = torch.randn(1, 1, 4, 8)
        >>> print(rs.mechanism("scaled_dot").explain(q, q, q).name)
        sdpa
        """
        return self.plan(q, k, v, mask, lowering).choice

    def weights(self, q: Tensor, k: Tensor, mask: MaskLike = None) -> Tensor:
        """All weights (b, h, m, n); for long texts `weight_statistics` avoids storing them.

        >>> import torch, rheoscope as rs
        >>> rs.mechanism("scaled_dot").weights(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4), mask="causal")
        tensor([[[[1.0000, 0.0000],
                  [0.5000, 0.5000]]]])
        """
        mechanism = replace(self.with_mask(mask), value=Identity())
        check_finite(q=q, k=k)
        check_call(mechanism, q, k, k)
        return reference_attention(mechanism, q, k, k)[1]
