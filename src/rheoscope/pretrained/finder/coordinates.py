"""How the coordinates of one tensor arrive in another: which goes where, with which factor."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.chains import LAYOUT_OPERATIONS
from rheoscope.pretrained.finder.equal_operations import replay_key
from rheoscope.pretrained.finder.tape import Tape, Value, needed_operations, replay
from rheoscope.shapes import RheoscopeError

NEAR = 1e-9
"""Numbers of a replay in float64 that differ by less are equal."""
UNROTATED_TOKENS = 2
"""One of the first two tokens is not rotated: the first, or the patch after a special token that is rotated by learned angles (MLCD)."""
SUMS = frozenset({"add", "sub"})
FACTORS = frozenset({"mul", "div", "index", "gather", "index_select"})
"""Operations that make zeros of zeros, whatever their second tensor is."""
Coordinates = tuple[int, ...]
"""The shape of what a tensor holds for one token."""


@dataclass(frozen=True, eq=False)
class CoordinateMap:
    """target[c] = source[index[c]] * gain[c] + bias[c] at a token that is not rotated, for coordinates in the order of their tensors.

    `is_filled` marks the coordinates that come from this source. `shape` is the shape of the target without the tokens, and `token`
    the number of that token.
    """

    index: Int[Tensor, " c"]
    gain: Float[Tensor, " c"]
    bias: Float[Tensor, " c"]
    is_filled: Bool[Tensor, " c"]
    shape: Coordinates
    token: int = 0


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
    operations share the map, or its index if its factors are weights.
    """
    if constants:
        return _coordinate_map(tape, source, target, constants)
    key = "coordinates", tape.share(("replay", source, target), lambda: replay_key(tape, (target,), source))
    return tape.share(key, lambda: _map_of_copy(tape, source, target) or _coordinate_map(tape, source, target, {}))


def _map_of_copy(tape: Tape, source: Value, target: Value) -> CoordinateMap | None:
    """The map of a copy of a layer with the index of that layer; None if there is no such layer, or if other coordinates are filled."""
    if tape.original is tape:
        return None
    expected = coordinate_map(tape.original, source, target)
    gain, bias = (x[expected.token] for x in _gains_and_biases(tape, source, target, {}))
    is_same_choice = torch.equal(gain.abs() > NEAR, expected.is_filled)
    return replace(expected, gain=gain, bias=bias) if is_same_choice else None


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
    n_coordinates, device = tape.template(source).numel() // tape.n_tokens, tape.template(source).device
    gains, biases = _gains_and_biases(tape, source, target, constants)
    numbers = torch.arange(1, n_coordinates + 1, dtype=torch.float64, device=device)
    dyed = _arrives(tape, source, target, constants, numbers) - biases
    for token, (gain, bias, arrived) in enumerate(zip(gains, biases, dyed, strict=True)):
        is_filled = gain.abs() > NEAR
        position = torch.where(is_filled, arrived / torch.where(is_filled, gain, 1.0), 1.0) - 1
        if float((position - position.round()).abs().max()) <= 1e-6 * n_coordinates:
            shape = coordinate_shape(tape, target)
            return CoordinateMap(position.round().long(), gain, bias, is_filled, shape, token)
    raise RheoscopeError(Message("the coordinates of a tensor are mixed on their way to the heads"))


def _gains_and_biases(
    tape: Tape, source: Value, target: Value, constants: dict[Value, Tensor]
) -> tuple[Float[Tensor, "m t"], Float[Tensor, "m t"]]:
    """What arrives of ones, and of zeros, which are not replayed if nothing is added on the way."""
    ones = filled_with(tape, source, 1.0).flatten()[: tape.template(source).numel() // tape.n_tokens]
    total = _arrives(tape, source, target, constants, ones)
    if not constants and tape.share(("adds nothing", source, target), lambda: _adds_nothing(tape, source, target)):
        return total, torch.zeros_like(total)
    bias = _arrives(tape, source, target, constants, 0 * ones)
    return total - bias, bias


def _arrives(
    tape: Tape, source: Value, target: Value, constants: dict[Value, Tensor], numbers: Float[Tensor, " c"]
) -> Float[Tensor, "m t"]:
    """The target at the first tokens if every token of the source has these numbers."""
    rows = from_token_rows(tape, numbers.expand(tape.n_tokens, -1), source)
    substitutions = {**_positions_from_zero(tape, source, target), **constants, source: rows}
    return token_rows(tape, replay(tape, [target], substitutions)[0])[:UNROTATED_TOKENS]


def _adds_nothing(tape: Tape, source: Value, target: Value) -> bool:
    """Whether zeros arrive as zeros for all weights on the way: numbers are moved, multiplied, and added to each other."""
    reached = {source}
    for operation in needed_operations(tape, [target], {source}):
        operands, name = operation.operands, operation.name
        if name in SUMS:
            is_zero = len(operands) == 2 and reached.issuperset(operands)
        elif name in FACTORS:
            is_zero = operands[0] in reached or name == "mul"
        else:
            is_zero = name == "neg" or (
                name in LAYOUT_OPERATIONS - {"constant_pad_nd"} and reached.issuperset(operands)
            )
        if not is_zero:
            return False
        reached.update(operation.results)
    return True
