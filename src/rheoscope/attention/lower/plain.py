"""The reference itself as a lowering: always possible, all weights at once."""

from torch import Tensor

from rheoscope.attention.lower.offer import Offer
from rheoscope.attention.mechanism import Mechanism, reference


def offer(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> Offer:
    return Offer(
        "the definition itself, all scores at once", lambda q, k, v: reference(mechanism, q, k, v)[0].to(v.dtype)
    )
