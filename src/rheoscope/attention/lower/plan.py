"""A call planned: what is checked and decided once for all calls of the same shapes, and then only applied.

The checks of the border and the choice of a lowering depend on the structure of a mechanism (everything but the numbers
inside its tensors) and on the shapes, dtypes and devices of q, k and v. So the choice is made once for both and shared:
by the layers of a model, by the steps of training, by copies of a mechanism with other tensors.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rheoscope.attention.call_checks import check_call, check_tensors
from rheoscope.attention.definition import Definition
from rheoscope.attention.lower.choice import Choice, choose_lowering
from rheoscope.attention.parameters import Structure
from rheoscope.shapes import RheoscopeError

MAX_CHOICES = 1024
"""Choices that are kept; when there are more, all are forgotten, and made again when needed."""
CHOICE_CACHE: dict[tuple[Structure, "CallSignature", str | None], Choice] = {}


class CallSignature(NamedTuple):
    """What a plan may depend on beside the mechanism: everything about q, k and v but their numbers."""

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
    """A mechanism under its mask with the lowering that calls of one shape take.

    >>> import torch, rheoscope as rs
    >>> q = torch.randn(1, 1, 4, 8)
    >>> rs.mechanism("metric").plan(q, q, q).choice.name
    'sdpa'
    """

    mechanism: Definition
    signature: CallSignature
    choice: Choice

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The outputs; a call of other shapes, dtype or device is refused."""
        signature = call_signature(q, k, v)
        if signature._replace(grad_enabled=self.signature.grad_enabled) != self.signature:
            raise RheoscopeError(
                f"this plan is for {_describe_call(self.signature)}, got {_describe_call(signature)}; type mechanism.plan(q, k, v)"
            )
        return self.run(q, k, v)

    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The outputs, nothing looked at again."""
        return self.choice.run(self.mechanism, q, k, v)


def plan_call(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor, lowering: str | None = None) -> Plan:
    """The plan of a call; the first of its kind is checked and decided, every later one is looked up."""
    signature = call_signature(q, k, v)
    key = mechanism.structure, signature, lowering
    choice = CHOICE_CACHE.get(key)
    if choice is None:
        check_call(mechanism, q, k, v)
        if len(CHOICE_CACHE) >= MAX_CHOICES:
            CHOICE_CACHE.clear()
        choice = CHOICE_CACHE.setdefault(key, choose_lowering(mechanism, q, k, v, lowering))
    return Plan(mechanism, signature, choice)


def _describe_call(signature: CallSignature) -> str:
    tensors = zip("qkv", signature.shapes, signature.dtypes, signature.devices, strict=True)
    return ", ".join(f"{name} {tuple(shape)} {dtype} on {device}" for name, shape, dtype, device in tensors)
