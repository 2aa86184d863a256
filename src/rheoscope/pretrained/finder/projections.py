"""Queries, keys and values on a tape as maps of the points: weights, norms, and where each coordinate arrives at the heads."""

from dataclasses import dataclass, replace

from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.chains import Normalisation, NormConstants, Stage, Weight, frontier, norm_constants
from rheoscope.pretrained.finder.coordinates import CoordinateMap, coordinate_map, filled_with
from rheoscope.pretrained.finder.tape import Tape, Value
from rheoscope.shapes import RheoscopeError


@dataclass(frozen=True, eq=False)
class NormStep:
    """A norm on the way, with its constants. `placement` leads from the weight before it to its source."""

    norm: Normalisation
    constants: NormConstants
    placement: CoordinateMap | None = None


@dataclass(frozen=True, eq=False)
class ProjectionPart:
    """One weight matrix through which points reach the queries, keys or values.

    `norm` is the norm of its result, `placement` leads from there to the next tensor, and `inner` is the part before the weight
    (latent attention).
    """

    weight: Weight
    placement: CoordinateMap
    norm: NormStep | None = None
    inner: "ProjectionPart | None" = None

    @property
    def first(self) -> "ProjectionPart":
        """The part that reads the points."""
        return self if self.inner is None else self.inner.first


@dataclass(frozen=True, eq=False)
class Projection:
    """All parts of the queries, keys or values. They read `source`, the points or their norm."""

    parts: tuple[ProjectionPart, ...]
    source: Value


def match_projection(tape: Tape, rows: Value, points: Value, tokens: set[Value]) -> Projection:
    """The chain from the points to the rows that a product reads."""
    return tape.share(("projection", rows, points), lambda: _match_projection(tape, rows, points, tokens))


def _match_projection(tape: Tape, rows: Value, points: Value, tokens: set[Value]) -> Projection:
    parts = match_parts(tape, rows, points, tokens)
    sources = {layout_source(tape, part.first.weight.source) for part in parts}
    if len(sources) != 1:
        raise RheoscopeError(Message("queries, keys or values read {n} different tensors, expected 1", n=len(sources)))
    return Projection(parts, next(iter(sources)))


def match_parts(tape: Tape, rows: Value, points: Value, tokens: set[Value]) -> tuple[ProjectionPart, ...]:
    """The weights through which the points reach a tensor, each with what follows and precedes it."""
    stages = frontier(tape, rows, tokens, points)
    return tuple(
        _part(
            tape,
            stage,
            rows,
            points,
            tokens,
            {_result(x): filled_with(tape, _result(x), 0.0) for x in stages if x is not stage},
        )
        for stage in stages
    )


def _result(stage: Stage | Value) -> Value:
    return stage if isinstance(stage, int) else stage.result


def _part(
    tape: Tape, stage: Stage | Value, rows: Value, points: Value, tokens: set[Value], others: dict[Value, Tensor]
) -> ProjectionPart:
    if isinstance(stage, int):
        raise RheoscopeError(Message("queries, keys or values read the points without a weight matrix"))
    placement = coordinate_map(tape, stage.result, rows, others)
    if isinstance(stage, Weight):
        return ProjectionPart(stage, placement, None, _inner_part(tape, stage, points, tokens))
    (weight, *more) = frontier(tape, stage.source, tokens, points)
    if more or not isinstance(weight, Weight):
        raise RheoscopeError(Message("a norm of queries, keys or values reads more than one weight matrix"))
    step = _norm_step(tape, stage, weight)
    return ProjectionPart(weight, placement, step, _inner_part(tape, weight, points, tokens))


def _norm_step(tape: Tape, norm: Normalisation, weight: Weight) -> NormStep:
    """A norm of the result of a weight. Means that it subtracts are left out of the way of each coordinate."""
    constants = norm_constants(tape, norm, weight.result)
    means = [v for v in tape.ancestors(norm.source, {weight.result}) if _is_mean(tape, v)]
    without_means = {v: filled_with(tape, v, 0.0) for v in means}
    placement = coordinate_map(tape, weight.result, norm.source, without_means)
    return NormStep(norm, replace(constants, subtracts_mean=constants.subtracts_mean or bool(means)), placement)


def _is_mean(tape: Tape, value: Value) -> bool:
    operation = tape.operation_of(value)
    return operation is not None and operation.name == "mean"


def _inner_part(tape: Tape, weight: Weight, points: Value, tokens: set[Value]) -> ProjectionPart | None:
    """The part before a weight, unless it reads the points or their norm."""
    (stage, *more) = frontier(tape, weight.source, tokens, points)
    if more:
        raise RheoscopeError(Message("a weight matrix reads {n} tensors, expected 1", n=1 + len(more)))
    if isinstance(stage, int) or (isinstance(stage, Normalisation) and _reads_points(tape, stage, points, tokens)):
        return None
    return _part(tape, stage, weight.source, points, tokens, {})


def _reads_points(tape: Tape, norm: Normalisation, points: Value, tokens: set[Value]) -> bool:
    return frontier(tape, norm.source, tokens, points) == [points]


def layout_source(tape: Tape, value: Value) -> Value:
    """The tensor of which this one is a copy or a view of the same numbers in the same order."""
    operation = tape.operation_of(value)
    while operation is not None and operation.name in ("view", "_unsafe_view", "reshape", "_to_copy", "alias", "clone"):
        value = operation.operands[0]
        operation = tape.operation_of(value)
    return value


def same_numbers(tape: Tape, first: Value, second: Value | None) -> bool:
    """Whether two tensors have the same numbers in the same order."""
    return second is not None and layout_source(tape, first) == layout_source(tape, second)
