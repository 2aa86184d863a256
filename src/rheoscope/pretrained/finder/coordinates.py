"""How the coordinates of one tensor arrive in another: which goes where, with which factor."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.equal_operations import replay_key
from rheoscope.pretrained.finder.tape import Tape, Value, replay
from rheoscope.shapes import RheoscopeError

NEAR = 1e-9
UNROTATED_TOKENS = 2
"""One of the first two tokens is not rotated: the first, or the patch after a special token that is rotated by learned angles (MLCD)."""
"""Numbers of a replay in float64 that differ by less are equal."""
Coordinates = tuple[int, ...]
"""The shape of what a tensor holds for one token."""


@dataclass(frozen=True, eq=False)
class CoordinateMap:
    """target[c] = source[index[c]] * gain[c] + bias[c] at a token that is not rotated, for coordinates in the order of their tensors.

    `is_filled` marks the coordinates that come from this source. `shape` is the shape of the target without the tokens.
    """

    index: Int[Tensor, " c"]
    gain: Float[Tensor, " c"]
    bias: Float[Tensor, " c"]
    is_filled: Bool[Tensor, " c"]
    shape: Coordinates


def token_axis(tape: Tape, x: Tensor) -> int:
    """The axis of tokens: the last one of its size."""
    axes = [axis for axis, size in enumerate(x.shape) if size == tape.n_tokens]
    if not axes:
        raise RheoscopeError(
            Message("a tensor of shape {shape} has no axis of {n} tokens", shape=str(tuple(x.shape)), n=tape.n_tokens)
        )
    return axes[-1]


def token_rows(tape: Tape, x: Tensor) -> Float[Tensor, "n c"]:
    """The numbers of every token in one row."""
    return x.movedim(token_axis(tape, x), 0).reshape(tape.n_tokens, -1)


def coordinate_shape(tape: Tape, value: Value) -> Coordinates:
    """The shape of a tensor without the tokens and without axes of size 1."""
    x = tape.template(value)
    axis = token_axis(tape, x)
    return tuple(size for other, size in enumerate(x.shape) if other != axis and size > 1)


def from_token_rows(tape: Tape, rows: Float[Tensor, "n c"], value: Value) -> Tensor:
    """Rows of tokens in the layout of a tensor of the tape."""
    x = tape.template(value)
    axis = token_axis(tape, x)
    rows_first = x.movedim(axis, 0).shape
    return rows.reshape(rows_first).movedim(0, axis).contiguous()


def filled_with(tape: Tape, value: Value, number: float) -> Tensor:
    """A tensor of one number in the shape of a tensor on the tape."""
    return torch.full_like(tape.template(value), number, dtype=torch.float64)


def coordinate_map(
    tape: Tape, source: Value, target: Value, constants: dict[Value, Tensor] | None = None
) -> CoordinateMap:
    """The map of the coordinates of a tensor, read at a token where rotations are the identity.

    The source is replaced by zeros, by ones and by its own indices, and other tensors by `constants`. Layers that run the same
    operations share the map.
    """
    if constants:
        return _coordinate_map(tape, source, target, constants)
    key = "coordinates", replay_key(tape, (target,), source)
    return tape.share(key, lambda: _coordinate_map(tape, source, target, {}))


def is_positions(tape: Tape, value: Value) -> bool:
    """Whether a tensor counts the tokens, from any number on."""
    x = tape.template(value)
    if x.is_floating_point() or x.dtype is torch.bool or x.shape[-1:] != (tape.n_tokens,) or x.numel() % tape.n_tokens:
        return False
    numbers = tape.tensors[value]
    if numbers.shape != x.shape:  # experts of other weights receive another number of tokens
        return False
    return bool((numbers.reshape(-1, tape.n_tokens).diff(dim=-1) == 1).all())


def _positions_from_zero(tape: Tape, source: Value, target: Value) -> dict[Value, Tensor]:
    """Positions behind a tensor that begin at another number, from 0 on, so that rotations begin at the identity (PaliGemma)."""
    later = tape.share("later positions", lambda: _later_positions(tape))
    behind = tape.ancestors(target, {source}) if later else set()
    return {v: x for v, x in later.items() if v in behind}


def _later_positions(tape: Tape) -> dict[Value, Tensor]:
    counts = [v for v in range(len(tape.tensors)) if is_positions(tape, v)]
    firsts = {v: int(tape.tensors[v].flatten()[0]) for v in counts}
    return {v: tape.tensors[v] - first for v, first in firsts.items() if first}


def _coordinate_map(tape: Tape, source: Value, target: Value, constants: dict[Value, Tensor]) -> CoordinateMap:
    n_coordinates = tape.template(source).numel() // tape.n_tokens
    constants = _positions_from_zero(tape, source, target) | constants

    def arrives(numbers: Float[Tensor, " c"]) -> Float[Tensor, "m t"]:
        rows = from_token_rows(tape, numbers.expand(tape.n_tokens, -1), source)
        return token_rows(tape, replay(tape, [target], {**constants, source: rows})[0])[:UNROTATED_TOKENS]

    device = tape.template(source).device
    zeros = torch.zeros(n_coordinates, dtype=torch.float64, device=device)
    biases = arrives(zeros)
    gains = arrives(zeros + 1) - biases
    dyed = arrives(torch.arange(1, n_coordinates + 1, dtype=torch.float64, device=device)) - biases
    for bias, gain, arrived in zip(biases, gains, dyed, strict=True):
        is_filled = gain.abs() > NEAR
        position = torch.where(is_filled, arrived / torch.where(is_filled, gain, 1.0), 1.0) - 1
        if float((position - position.round()).abs().max()) <= 1e-6 * n_coordinates:
            return CoordinateMap(position.round().long(), gain, bias, is_filled, coordinate_shape(tape, target))
    raise RheoscopeError(Message("the coordinates of a tensor are mixed on their way to the heads"))
