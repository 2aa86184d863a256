"""The chain of maps between two tensors on a tape: linear maps with weights, norms, and token-local linear steps between them.

A chain is read backwards. `frontier` walks from a tensor to the nearest weight or norm, through steps that are linear in the
tokens: layout, products with constants, rotations. Anything else is refused by the name of its operation.
"""

from dataclasses import dataclass

import torch

from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.equal_operations import replay_key
from rheoscope.pretrained.finder.tape import Operand, Operation, Tape, Value, replay
from rheoscope.shapes import RheoscopeError

LAYOUT_OPERATIONS = frozenset({
    "view", "_unsafe_view", "reshape", "transpose", "permute", "unsqueeze", "squeeze", "slice", "select", "expand",
    "clone", "t", "split", "split_with_sizes", "cat", "stack", "unbind", "_to_copy", "alias", "detach", "lift_fresh",
    "contiguous", "as_strided", "_reshape_alias", "view_as_real", "view_as_complex", "index", "index_select", "flip",
    "roll", "repeat", "copy", "unfold", "constant_pad_nd", "chunk", "real", "imag", "complex", "_conj", "gather",
    "repeat_interleave", "slice_scatter",
})  # fmt: skip
"""Operations that move numbers and do not change them."""
LINEAR_OPERATIONS = frozenset({"neg", "add", "sub", "rsub", "mul", "div"})
"""Operations that are linear in the tokens if at most one factor depends on them."""
ROUTING_OPERATIONS = frozenset({"index_add", "index_put", "scatter_add"})
"""Operations that collect the results of experts."""
MATRIX_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "matmul"})


@dataclass(frozen=True, eq=False)
class Weight:
    """A linear map of the tokens by a constant matrix: result = source @ matrix + bias."""

    result: Value
    source: Value
    matrix: Value
    bias: Value | None


@dataclass(frozen=True, eq=False)
class Normalisation:
    """The step of a norm at which tokens are divided by their length: result = source * scale, or a whole LayerNorm.

    Its gain and its bias come later, except in the operation `native_layer_norm`.
    """

    result: Value
    source: Value
    scale: Value | None
    operation: Operation


Stage = Weight | Normalisation


def frontier(tape: Tape, value: Value, tokens: set[Value], *sources: Value) -> list[Stage | Value]:
    """The nearest weights and norms on the way from the tokens to a tensor, and a source itself if the way is free.

    `tokens` are the tensors that depend on the sources.
    """
    stages: dict[Value, Stage | Value] = {}
    pending, seen = [value], set[Value]()
    while pending:
        current = pending.pop()
        if current in seen or current not in tokens:
            continue
        seen.add(current)
        stage: Stage | Value | None = current if current in sources else stage_of(tape, current, tokens)
        if stage is not None:
            stages[current] = stage
            continue
        operation = tape.operation_of(current)
        assert operation is not None
        if not is_token_linear(operation, tokens):
            raise unknown_operation(operation)
        pending.extend(operand for operand in operation.operands if operand in tokens)
    return [stages[current] for current in sorted(stages)]


def stage_of(tape: Tape, value: Value, tokens: set[Value]) -> Stage | None:
    """The weight or norm whose result this is."""
    operation = tape.operation_of(value)
    if operation is None:
        return None
    if operation.name in MATRIX_PRODUCTS:
        return _weight(operation, tokens)
    if operation.name in ("native_layer_norm", "_fused_rms_norm"):
        (source,) = (x.value for x in operation.args[:1])
        return Normalisation(value, source, None, operation)
    if operation.name in ("mul", "div"):
        return _normalisation(tape, operation, tokens)
    return None


def _weight(operation: Operation, tokens: set[Value]) -> Weight | None:
    has_bias = operation.name in ("addmm", "baddbmm")
    bias, (left, right) = (operation.args[0] if has_bias else None), operation.args[has_bias : has_bias + 2]
    if left.value in tokens and right.value not in tokens:
        return Weight(operation.results[0], left.value, right.value, None if bias is None else bias.value)
    return None


def _normalisation(tape: Tape, operation: Operation, tokens: set[Value]) -> Normalisation | None:
    """x * scale(x) or x / length(x), where the scale is one number per group of coordinates."""
    factors = [x.value for x in operation.args[:2] if isinstance(x, Operand)]
    if len(factors) < 2 or not tokens.issuperset(factors):
        return None
    sizes = [tape.template(factor).numel() for factor in factors]
    if sizes[0] == sizes[1] or (operation.name == "div" and sizes[0] < sizes[1]):
        return None
    source, scale = factors if sizes[0] > sizes[1] else factors[::-1]
    return Normalisation(operation.results[0], source, scale, operation)


def is_token_linear(operation: Operation, tokens: set[Value]) -> bool:
    """Whether a step is linear in the tokens, up to a constant, and mixes nothing but coordinates."""
    if operation.name in LAYOUT_OPERATIONS:
        return True
    n_dependent = sum(operand in tokens for operand in operation.operands)
    if operation.name in ("mul", "div"):
        is_divisor = operation.name == "div" and _value(operation.args[1]) in tokens
        return n_dependent == 1 and not is_divisor
    return operation.name in LINEAR_OPERATIONS or (
        operation.name in ("mean", "sum") and operation.args[1] in ([-1], -1)
    )


def _value(argument: object) -> Value | None:
    return argument.value if isinstance(argument, Operand) else None


def unknown_operation(operation: Operation) -> RheoscopeError:
    if operation.name in ROUTING_OPERATIONS:
        return RheoscopeError(
            Message(
                "{module}: {operation} routes tokens to experts before the scores, so M has no single matrix of queries",
                module=type(operation.module).__name__,
                operation=operation.name,
            )
        )
    return RheoscopeError(
        Message(
            "{module}: {operation} lies between the tokens and the scores, which no operator describes",
            module=type(operation.module).__name__,
            operation=operation.name,
        )
    )


# Norms


@dataclass(frozen=True, eq=False)
class NormConstants:
    """x̂ = (x − mean) / sqrt(mean(x²) + eps), over groups of `width` coordinates, then times `gain`."""

    width: int
    eps: float
    gain: float
    subtracts_mean: bool


def norm_constants(tape: Tape, norm: Normalisation, boundary: Value | None = None) -> NormConstants:
    """The constants of a norm, from its scale at 0 and at numbers with mean 0 and mean square 1.

    They take the place of the norm's source, or of the `boundary` before it if the scale does not read the source.
    """
    source = tape.template(norm.source)
    if norm.scale is None:
        width = torch.Size(norm.operation.args[1]).numel()
        is_layer_norm = norm.operation.name == "native_layer_norm"
        eps = norm.operation.args[4 if is_layer_norm else 3]
        return NormConstants(width, float(eps or 0.0), 1.0, is_layer_norm)
    width = source.numel() // tape.template(norm.scale).numel()
    reads_source = boundary is None or norm.source in tape.ancestors(norm.scale, {norm.source, boundary})
    place = norm.source if reads_source or boundary is None else boundary
    key = "norm", width, norm.operation.name, replay_key(tape, (norm.scale,), place)
    return tape.share(key, lambda: _probed_constants(tape, norm, place, width))


def _probed_constants(tape: Tape, norm: Normalisation, place: Value, width: int) -> NormConstants:
    assert norm.scale is not None
    zeros = torch.zeros_like(tape.template(place), dtype=torch.float64)
    signs = torch.ones(width, dtype=torch.float64, device=zeros.device)
    signs[: width // 2] = -1.0
    signs[-1] = 0.0 if width % 2 else 1.0
    signs *= (width / max(1, width - width % 2)) ** 0.5
    ones = signs.repeat(zeros.numel() // width).view_as(zeros)
    scales = [float(replay(tape, [norm.scale], {place: x})[0].flatten()[0]) for x in (zeros, ones)]
    inverse_squares = [s**2 if norm.operation.name == "div" else s**-2 for s in scales]
    sum_of_squares = inverse_squares[1] - inverse_squares[0]  # 1 for a mean of squares, `width` for a sum
    return NormConstants(width, inverse_squares[0] / sum_of_squares, sum_of_squares**-0.5, False)


def subtracts_mean(tape: Tape, norm: Normalisation, boundary: Value) -> bool:
    """Whether the source of a norm is the centred boundary."""
    ones = torch.ones_like(tape.template(boundary), dtype=torch.float64)
    return bool(replay(tape, [norm.source], {boundary: ones})[0].abs().max() < 1e-9)
