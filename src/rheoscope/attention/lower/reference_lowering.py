"""The reference itself as a lowering: always possible, all weights at once."""

from torch import Tensor

from rheoscope.attention.definition import Definition, reference_attention
from rheoscope.attention.lower.lowering import LoweredCall


def try_lower(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> LoweredCall:
    return LoweredCall("the definition itself, all scores at once", run)


def run(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return reference_attention(mechanism, q, k, v)[0].to(v.dtype)
