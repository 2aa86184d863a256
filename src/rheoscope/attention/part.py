"""The base class of every part of a mechanism: scores, masks, positions, normalisers and feature maps.

Each of the five families is an abstract class with final frozen dataclasses below it. Code outside a family calls methods
and never checks the class of a part. A property that only enables a fast path defaults to "no". A property that would
change a result raises until the part implements it.
"""

from typing import TypeVar

from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

PartType = TypeVar("PartType", bound="MechanismPart")


class MechanismPart:
    """One of the five parts of a mechanism, or a component of one."""

    def select_heads(self: PartType, heads: list[int]) -> PartType:
        """The same part restricted to these query heads; per-head tensors are indexed."""
        raise self.missing_method_error("select_heads", Message("how to select heads"))

    def missing_method_error(self, method: str, quantity: str) -> RheoscopeError:
        return RheoscopeError(
            Message(
                "{part} does not define {quantity}: implement the method {method}",
                part=type(self).__name__,
                quantity=quantity,
                method=method,
            )
        )
