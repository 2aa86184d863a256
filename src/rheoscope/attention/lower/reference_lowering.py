"""The reference implementation as a lowering: it runs every call and computes all weights at once."""

from torch import Tensor

from rheoscope.attention.definition import Definition, reference_attention
from rheoscope.attention.lower.lowering import LoweredCall, unless_compiling
from rheoscope.messages.message import Message


def try_lower(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> LoweredCall:
    return LoweredCall(unless_compiling(lambda: Message("the definition itself, all scores at once")), run)


def run(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return reference_attention(mechanism, q, k, v)[0].to(v.dtype)
