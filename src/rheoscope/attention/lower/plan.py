"""Plans: the checks and the choice of a lowering, made once for all calls of the same shapes.

Both depend on the structure of a mechanism (everything but the numbers in its tensors) and on the shapes, dtypes and
devices of q, k and v. The layers of a model, the steps of a training run and copies of a mechanism with other tensors
therefore share one choice.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rheoscope.attention.call_checks import check_call, check_tensors
from rheoscope.attention.definition import Definition
from rheoscope.attention.lower.choice import Choice, choose_lowering
from rheoscope.attention.parameters import Structure
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message, join
from rheoscope.shapes import RheoscopeError

MAX_CHOICES = 1024
"""The maximum number of cached choices. A full cache is emptied."""
CHOICE_CACHE: dict[tuple[Structure, "CallSignature", str | None], Choice] = {}


class CallSignature(NamedTuple):
    """The properties of q, k and v on which a plan depends: everything but their numbers."""

    shapes: tuple[torch.Size, ...]
    dtypes: tuple[torch.dtype, ...]
    devices: tuple[torch.device, ...]
    grad_enabled: bool


def call_signature(q: Tensor, k: Tensor, v: Tensor) -> CallSignature:
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        check_tensors(q, k, v)
    return CallSignature(
        (q.shape, k.shape, v.shape),
        (q.dtype, k.dtype, v.dtype),
        (q.device, k.device, v.device),
        torch.is_grad_enabled(),
    )


@dataclass(frozen=True, eq=False)
class Plan:
    """A mechanism with its mask, and the lowering chosen for calls of one signature.

    >>> import torch, rheoscope as rs
    >>> q = torch.randn(1, 1, 4, 8)
    >>> rs.mechanism("metric").plan(q, q, q).choice.name
    'sdpa'
    """

    mechanism: Definition
    signature: CallSignature
    choice: Choice

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The attention outputs. Other shapes, dtypes or devices raise an error."""
        signature = call_signature(q, k, v)
        if signature._replace(grad_enabled=self.signature.grad_enabled) != self.signature:
            raise RheoscopeError(
                Message(
                    "this plan is for {planned}, got {call}",
                    planned=_describe_call(self.signature),
                    call=_describe_call(signature),
                ),
                Advice("mechanism.plan(q, k, v)"),
            )
        return self.run(q, k, v)

    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The attention outputs, without checks."""
        return self.choice.run(self.mechanism, q, k, v)


def plan_call(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor, lowering: str | None = None) -> Plan:
    """The plan of a call. The first call of a signature is checked and decided; later ones use the cache."""
    signature = call_signature(q, k, v)
    key = mechanism.structure, signature, lowering
    choice = CHOICE_CACHE.get(key)
    if choice is None:
        check_call(mechanism, q, k, v)
        if len(CHOICE_CACHE) >= MAX_CHOICES:
            CHOICE_CACHE.clear()
        choice = CHOICE_CACHE.setdefault(key, choose_lowering(mechanism, q, k, v, lowering))
    return Plan(mechanism, signature, choice)


def _describe_call(signature: CallSignature) -> Message:
    tensors = zip("qkv", signature.shapes, signature.dtypes, signature.devices, strict=True)
    descriptions = [
        Message(
            "{name} {shape} {dtype} on {device}",
            name=name,
            shape=str(tuple(shape)),
            dtype=str(dtype),
            device=str(device),
        )
        for name, shape, dtype, device in tensors
    ]
    return join(", ", tuple(descriptions))
