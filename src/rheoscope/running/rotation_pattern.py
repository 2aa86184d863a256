"""Which coordinates of queries and keys a position encoding rotates, and in which pairs, read off its rotation matrix."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.position import Position
from rheoscope.shapes import RheoscopeError

HALVES, NEIGHBOURS, OTHER = "halves", "neighbours", "other"


@dataclass(frozen=True)
class RotationPattern:
    """Coordinates `start` to `stop` − 1 of a head rotate in planes, and `scale` multiplies them (1, or the factor of YaRN).

    `pairs` is "halves" (c with c + half the width, as in Llama), "neighbours" (2c with 2c + 1, as in GPT-J) or "other".
    """

    start: int
    stop: int
    pairs: str
    scale: float


@torch.no_grad()
def rotation_pattern(position: Position, width: int, device: torch.device) -> RotationPattern | None:
    """The pattern of a rotation of this width; None if positions do not rotate queries and keys.

    >>> from rheoscope.attention.position import NoPosition, Rotary
    >>> rotation_pattern(Rotary(width=4, pairs="neighbours"), 8, torch.device("cpu"))
    RotationPattern(start=0, stop=4, pairs='neighbours', scale=1.0)
    >>> rotation_pattern(NoPosition(), 8, torch.device("cpu")) is None
    True
    """
    if not position.changes_tokens:
        return None
    template = torch.empty(0, device=device)
    try:
        at_zero, at_offset = (position.rotation_matrix(offset, width, template).cpu() for offset in (0, 1))
    except RheoscopeError:  # an encoding that adds to tokens
        return None
    mixed = (at_offset - at_offset.diagonal().diag()).abs()
    rotated = (mixed.amax(1) > 0).nonzero().flatten()
    if not len(rotated):
        return None
    start, stop = int(rotated[0]), int(rotated[-1]) + 1
    return RotationPattern(start, stop, _pairs(mixed[start:stop, start:stop]), float(at_zero[start, start]) ** 0.5)


def _pairs(mixed: Float[Tensor, "k k"]) -> str:
    coordinates, partners = torch.arange(len(mixed)), mixed.argmax(1)
    is_rotated = mixed.amax(1) > 0  # slow planes of some models do not rotate
    for name, expected in (
        (HALVES, (coordinates + len(mixed) // 2) % len(mixed)),
        (NEIGHBOURS, coordinates + 1 - 2 * (coordinates % 2)),
    ):
        if bool((partners == expected)[is_rotated].all()):
            return name
    return OTHER
