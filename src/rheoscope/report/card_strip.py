"""A strip of characters that shows an interval, the smallest effect of interest and what random models reach."""

import math
from dataclasses import dataclass

STRIP_WIDTH = 29
"""Characters of a strip. It is odd, so that 0 is in the middle."""


@dataclass(frozen=True)
class Strip:
    """An interval from `low` to `high` with its `estimate`, ± `smallest_effect`, and random models from `random_low` to `random_high`."""

    low: float
    estimate: float
    high: float
    smallest_effect: float
    random_low: float
    random_high: float

    @property
    def scale(self) -> float:
        """The number at the right end."""
        ends = (self.low, self.high, 1.5 * self.smallest_effect, self.random_low, self.random_high)
        return max(abs(end) for end in ends if math.isfinite(end))

    def column(self, value: float, width: int) -> int:
        """The character at which a value lies."""
        return round((value / self.scale + 1) / 2 * (width - 1))

    def draw(self, width: int = STRIP_WIDTH) -> str:
        """The strip as text: ┊ at ± the smallest effect, ┼ at 0, dots for random models, ├─●─┤ for the interval.

        >>> Strip(0.1, 0.15, 0.2, 0.05, -0.03, 0.03).draw(21)
        '        ┊·┼·┊  ├──●─┤'
        """
        characters = [" "] * width
        for column in range(self.column(self.random_low, width), self.column(self.random_high, width) + 1):
            characters[column] = "·"
        characters[self.column(0, width)] = "┼"
        for side in (-1, 1):
            characters[self.column(side * self.smallest_effect, width)] = "┊"
        first, last = self.column(self.low, width), self.column(self.high, width)
        for column in range(first, last + 1):
            characters[column] = "─"
        characters[first], characters[last] = "├", "┤"
        characters[self.column(self.estimate, width)] = "●"
        return "".join(characters)
