"""Queries that grow with their position beyond some length of the text (temperature tuning of Llama 4 and Ministral 3)."""

from collections.abc import Callable

from torch import Tensor, ones

from rheoscope.pretrained.finder.coordinates import is_positions
from rheoscope.pretrained.finder.projections import Projection
from rheoscope.pretrained.finder.rotation import Arrival, PositionSource, rotated_rows
from rheoscope.pretrained.finder.tape import Tape, Value

FARTHEST_POSITIONS = tuple(1 << bits for bits in range(24, 3, -1))
"""The farthest position that is tried, and smaller ones for tables that end before it."""
SAME_LENGTH = 1e-4
"""Vectors whose lengths differ by a smaller factor have the same length: rotary tables are computed in float32."""


def longest_text_without_growth(tape: Tape, rows: Value, projection: Projection, tokens: set[Value]) -> int | None:
    """The number of positions at which queries have the same length; None if it is that of every text.

    M is no function of the distance beyond it, so longer texts are refused.
    """
    arrivals: tuple[Arrival, ...] = tuple(
        (part.norm.norm.result if part.norm else part.weight.result, part.placement) for part in projection.parts
    )
    constants = tape.ancestors(rows, {source for source, _ in arrivals}) - tokens
    positions = {v for v in constants if is_positions(tape, v)}
    first = tuple(v for v in positions if tape.ancestors(v).isdisjoint(positions - {v}))
    if not first:
        return None
    key = "growth", frozenset(v for v in constants if v in tape.returned or v in first), tape.template(rows).shape
    return tape.original.share(key, lambda: _longest_text(tape, rows, arrivals, PositionSource(tape, None, first)))


def _longest_text(tape: Tape, rows: Value, arrivals: tuple[Arrival, ...], source: PositionSource) -> int | None:
    """The first position at which a fixed query is longer or shorter, by bisection."""
    width = tape.template(rows).shape[-1]
    pattern: Tensor = ones(width).double()

    def length(position: int) -> float:
        return float(rotated_rows(tape, rows, arrivals, width, pattern, source.start_at(position))[0].norm())

    first = length(0)
    far, last = _farthest(length)
    if abs(last / first - 1) <= SAME_LENGTH:
        return None
    near = 0
    while far - near > 1:
        middle = (near + far) // 2
        near, far = (middle, far) if abs(length(middle) / first - 1) <= SAME_LENGTH else (near, middle)
    return far


def _farthest(length: Callable[[int], float]) -> tuple[int, float]:
    """The farthest position whose length is known, with this length."""
    for position in FARTHEST_POSITIONS:
        try:
            return position, length(position)
        except (IndexError, RuntimeError):  # a table of positions ends before it
            continue
    return 0, length(0)
