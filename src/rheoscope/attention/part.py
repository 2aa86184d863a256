"""What every part of a mechanism shares: it answers for itself, and an answer that it was never given is refused.

A score, a mask, a position, a normaliser and a feature are five families of one kind: an abstract class that says what
is asked of the family, and final frozen values below it. Nothing outside asks a part for its class. A question whose
"no" costs no more than a fast path has that "no" for an answer from the start; where silence would change a number, the
abstract class refuses, and a new part has to say.
"""

from typing import TypeVar

from rheoscope.shapes import RheoscopeError

Own = TypeVar("Own", bound="Part")


class Part:
    """One of the five choices that make a mechanism, or a piece of one."""

    def of_heads(self: Own, some: list[int]) -> Own:
        """The same part for these query heads alone: of whatever it holds for each head, their share."""
        raise self.untold("of_heads", "what it is for some of its heads")

    def untold(self, method: str, what: str) -> RheoscopeError:
        name = type(self).__name__
        return RheoscopeError(f"{name} does not say {what}; write the method {method} in class {name}")
