"""The residual stream of a block on a tape: which tensors its half-layers add to the points."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.blocks import Block, is_cloud
from rheoscope.pretrained.finder.tape import ModuleCall, Operand, Tape, Value
from rheoscope.shapes import RheoscopeError

SAME_NUMBERS = frozenset({"view", "_unsafe_view", "reshape", "_to_copy", "alias", "detach", "clone", "contiguous"})
"""Operations that return the numbers of their argument in the same order."""


@dataclass(frozen=True, eq=False)
class HalfLayer:
    """What a half-layer adds: `result` = `before` + `factor` * `update`, followed by a norm in post-norm blocks.

    `total` is `scale` times the sum before that norm, `norm` the call of the norm.
    """

    before: Value
    update: Value | None
    factor: float
    total: Value
    result: Value
    norm: ModuleCall | None = None
    scale: float = 1.0


@dataclass(frozen=True, eq=False)
class BlockStream:
    """The half-layers of a block: attention, cross-attention in the decoder of an encoder-decoder, and the feed-forward part.

    In a parallel block attention and the feed-forward part read the input, and no module reads the point between them. A block
    in which attention and a part of another kind write together counts as parallel.
    """

    attention: HalfLayer
    mlp: HalfLayer
    is_parallel: bool
    cross: HalfLayer | None = None

    @property
    def before_mlp(self) -> Value:
        """The points that a sequential feed-forward part reads."""
        return (self.cross or self.attention).result


@dataclass(frozen=True, eq=False)
class StreamReader:
    """Reads the sums of one block."""

    tape: Tape
    block: Block

    @cached_property
    def calls(self) -> list[ModuleCall]:
        """The module calls inside the block, in the order of their ends."""
        first, last = self.block.call.first_operation, self.block.call.last_operation
        return [
            call
            for call in self.tape.calls
            if first <= call.first_operation and call.last_operation <= last and call is not self.block.call
        ]

    def terms(self, value: Value, factor: float = 1.0) -> dict[Value, float]:
        """A tensor as a weighted sum of tensors that are no sums."""
        operation = None if value == self.block.points else self.tape.operation_of(value)
        if operation is None:
            return {value: factor}
        if operation.name in SAME_NUMBERS:
            return self.terms(operation.operands[0], factor)
        scaled = self._scaled_operands(operation.name, operation.args, operation.kwargs)
        if scaled is None:
            return {value: factor}
        result: dict[Value, float] = {}
        for operand, weight in scaled:
            for term, term_factor in self.terms(operand, factor * weight).items():
                result[term] = result.get(term, 0.0) + term_factor
        return result

    def _scaled_operands(self, name: str, args: tuple, kwargs: dict) -> list[tuple[Value, float]] | None:
        """The summands of a sum, or the factor of a product with a number."""
        operands = [x.value for x in args[:2] if isinstance(x, Operand)]
        if name in ("add", "sub") and len(operands) == 2:
            if any(
                self.tape.template(x).shape[-2:] != self.tape.template(self.block.points).shape[-2:] for x in operands
            ):
                return None
            second = float(kwargs.get("alpha", 1.0)) * (-1.0 if name == "sub" else 1.0)
            return [(operands[0], 1.0), (operands[1], second)]
        if name in ("mul", "div"):
            numbers = [self._number(x) for x in args[:2]]
            if numbers[1] is not None:
                return [(operands[0], numbers[1] if name == "mul" else 1 / numbers[1])]
            if name == "mul" and numbers[0] is not None:
                return [(operands[-1], numbers[0])]
        return None

    def _number(self, argument: object) -> float | None:
        """A factor that is the same for all coordinates."""
        if isinstance(argument, int | float):
            return float(argument)
        if isinstance(argument, Operand):
            is_number = self.tape.template(argument.value).numel() == 1 and argument.value not in self.tape.producer
            return float(self.tape.tensors[argument.value]) if is_number else None
        return None


def without_layer_scale(tape: Tape, update: Value, factor: float) -> tuple[Value, float | Tensor]:
    """The tensor of which an update is a multiple, and the factor: one number, or one for every coordinate (LayerScale of InternVL)."""
    operation = tape.operation_of(update)
    if operation is None or operation.name != "mul" or not all(isinstance(x, Operand) for x in operation.args[:2]):
        return update, factor
    values = [x.value for x in operation.args[:2]]
    weights = [
        x for x in values if x not in tape.producer and tape.template(x).numel() == tape.template(update).shape[-1]
    ]
    if len(weights) != 1:
        return update, factor
    (other,) = (x for x in values if x not in weights)
    return other, factor * tape.tensors[weights[0]].detach().flatten()


def read_stream(tape: Tape, block: Block, weights: set[Value], cross_weights: set[Value] | None = None) -> BlockStream:
    """The half-layers of a block. `weights` are the tensors that depend on its attention weights, `cross_weights` on those of
    cross-attention."""
    reader = StreamReader(tape, block)
    terms = reader.terms(block.output)
    if block.points in terms:
        return _pre_norm_stream(reader, terms, weights, cross_weights)
    return _post_norm_stream(reader, weights, cross_weights)


def _pre_norm_stream(
    reader: StreamReader, terms: dict[Value, float], weights: set[Value], cross_weights: set[Value] | None
) -> BlockStream:
    """x → x + attention → … + mlp, in which every part depends on those before it, or a parallel block."""
    block = reader.block
    others = [term for term in terms if term != block.points]
    update = _first_of(reader, others, weights, set())
    if terms[block.points] != 1.0 or update is None:
        raise _unknown_stream(block)
    written, cross = {block.points: 1.0, update: terms[update]}, None
    cross_update = None
    if cross_weights is not None:
        cross_update = _first_of(reader, others, cross_weights, {update})
        if cross_update is None:
            raise _unknown_stream(block)
    rest = {term: factor for term, factor in terms.items() if term not in (update, cross_update, block.points)}
    total = _sum_of(reader, written)
    is_parallel = total is None or not any(term in weights for term in rest)
    total = block.output if total is None else total
    attention = HalfLayer(block.points, update, terms[update], total, total)
    if cross_update is not None:
        middle = _sum_of(reader, written | {cross_update: terms[cross_update]})
        if middle is None:
            raise _unknown_stream(block)
        cross = HalfLayer(total, cross_update, terms[cross_update], middle, middle)
    return BlockStream(attention, _mlp_half(reader, rest, (cross or attention).result), is_parallel, cross)


def _first_of(reader: StreamReader, terms: list[Value], weights: set[Value], earlier: set[Value]) -> Value | None:
    """The only term that depends on some weights and on no other term, apart from earlier ones."""
    candidates = [term for term in terms if term in weights and term not in earlier]
    others = set(terms) - earlier
    first = [x for x in candidates if (others - {x}).isdisjoint(reader.tape.ancestors(x, since=reader.block.points))]
    return first[0] if len(first) == 1 else None


def _sum_of(reader: StreamReader, terms: dict[Value, float]) -> Value | None:
    """The tensor on the tape that is this sum."""
    return next((v for v in _sums(reader) if reader.terms(v) == terms), None)


def _mlp_half(reader: StreamReader, rest: dict[Value, float], before: Value) -> HalfLayer:
    """The feed-forward part: a tensor that a module returns, or the only remaining term with its factor."""
    update, factor = next((v for v in reversed(_outputs(reader)) if reader.terms(v) == rest), None), 1.0
    if update is None and len(rest) == 1:
        ((update, factor),) = rest.items()
    return HalfLayer(before, update, factor, reader.block.output, reader.block.output)


def _post_norm_stream(reader: StreamReader, weights: set[Value], cross_weights: set[Value] | None) -> BlockStream:
    """x → norm(x + attention) → norm(… + mlp): each norm is a module that reads a sum."""
    block, halves = reader.block, list[HalfLayer]()
    result = block.output
    if block.exit_norm is not None:
        halves = [_half_of_sum(reader, result, block.exit_norm)]
        result = halves[0].before
    while result != block.points and len(halves) < 3:
        halves.insert(0, _half_before_norm(reader, result))
        result = halves[0].before
    expected = 2 if cross_weights is None else 3
    if len(halves) != expected or halves[0].before != block.points or halves[0].update not in weights:
        raise _unknown_stream(block)
    if cross_weights is not None and halves[1].update not in cross_weights:
        raise _unknown_stream(block)
    return BlockStream(halves[0], halves[-1], False, halves[1] if expected == 3 else None)


def _half_before_norm(reader: StreamReader, result: Value) -> HalfLayer:
    for call in reader.calls:
        if result in call.outputs and len([v for v in call.inputs if is_cloud(reader.tape, v)]) == 1:
            (total,) = (v for v in call.inputs if is_cloud(reader.tape, v))
            if total != result and len(reader.terms(total)) == 2:
                return _half_of_sum(reader, total, call)
    raise _unknown_stream(reader.block)


def _half_of_sum(reader: StreamReader, total: Value, norm: ModuleCall) -> HalfLayer:
    """A half-layer from its sum: the earlier summand is the stream."""
    terms = reader.terms(total)
    if len(terms) != 2:
        raise _unknown_stream(reader.block)
    before, update = sorted(terms, key=lambda v: reader.tape.producer.get(v, -1))
    scale = terms[before]
    return HalfLayer(before, update, terms[update] / scale, total, norm.outputs[0], norm, scale)


def _sums(reader: StreamReader) -> list[Value]:
    first, last = reader.block.call.first_operation, reader.block.call.last_operation
    return [op.results[0] for op in reader.tape.operations[first:last] if op.name == "add"]


def _outputs(reader: StreamReader) -> list[Value]:
    return [v for call in reader.calls for v in call.outputs if is_cloud(reader.tape, v)]


def _unknown_stream(block: Block) -> RheoscopeError:
    return RheoscopeError(
        Message(
            "{module}: the output is not the input plus attention plus a feed-forward part",
            module=type(block.call.module).__name__,
        )
    )
