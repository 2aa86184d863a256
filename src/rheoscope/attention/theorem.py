"""A theorem about attention with a measure of its violation."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Theorem:
    """A statement: its section, text, equivalent law, function that measures the violation, and rounding tolerance."""

    item: str
    statement: str
    law: str
    measure: Callable[[], float]
    tolerance: float = 1e-9
