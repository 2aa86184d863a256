"""How scores depend on positions: rotations of queries and keys, or a bias for every distance."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.attention.position import NoPosition, Position
from rheoscope.attention.position_bias import ALiBi, Buckets
from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.masks import is_arange
from rheoscope.pretrained.finder.projections import Projection
from rheoscope.pretrained.finder.rotation import Arrival, PlaceTables, RotaryTables, read_rotation
from rheoscope.pretrained.finder.softmax_calls import SoftmaxCall, constant_scores
from rheoscope.pretrained.finder.tape import Tape, Value
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model_parts import ModelRotary, PlaceRotary

NEAR_BIAS = 1e-5
"""Biases that differ by less are equal: their tables are computed in float32."""
FARTHEST_BUCKET = 300
"""Buckets are compared at every distance below this one, beyond which T5's buckets no longer differ."""
Mover = tuple[Value, int]
"""Positions of queries (sign 1) or of keys (sign -1) on a tape."""
MAX_DISTANCES = (128, *range(2, FARTHEST_BUCKET))
"""Largest distances of T5's buckets, the common one first."""


def read_position(tape: Tape, call: SoftmaxCall, q: Projection, tokens: set[Value]) -> Position:
    """The position encoding of a call of attention."""
    rotation = find_rotation(tape, call.queries, q, tokens)
    if rotation is not None and call.bias is not None:
        raise RheoscopeError(Message("a layer rotates its queries and adds a bias to its scores"))
    if isinstance(rotation, PlaceTables):
        return PlaceRotary(rotation.rotate, tape.n_tokens)
    if rotation is not None:
        return ModelRotary(rotation.rotate, rotation.rotate_back)
    return NoPosition() if call.bias is None else bias_position(tape, call)


def find_rotation(
    tape: Tape, rows: Value, projection: Projection, tokens: set[Value]
) -> RotaryTables | PlaceTables | None:
    """The rotation after the norm of queries, or before it if the norm has the same gain everywhere."""
    width = tape.template(rows).shape[-1]
    arrivals: tuple[Arrival, ...] = tuple(
        (part.norm.norm.result if part.norm else part.weight.result, part.placement) for part in projection.parts
    )
    rotation = read_rotation(tape, rows, arrivals, tokens, width)
    (part, *_) = projection.parts
    if rotation is not None or part.norm is None or part.norm.placement is None:
        return rotation
    before = read_rotation(tape, part.norm.norm.source, ((part.weight.result, part.norm.placement),), tokens, width)
    if before is not None and not bool((part.placement.gain == part.placement.gain[0]).all()):
        raise RheoscopeError(
            Message("positions rotate queries before a norm with a gain, so M is no function of the distance")
        )
    return before


def bias_position(tape: Tape, call: SoftmaxCall) -> Position:
    """ALiBi or T5's buckets. Layers that read the same table share them."""
    assert call.bias is not None
    alibi = _alibi(call.bias, call.mask)
    if alibi is not None:
        return alibi
    tables = _bucket_tables(tape, call)
    if len(tables) == 1:
        return tape.share(("buckets", tables[0]), lambda: _buckets(tape, call, tape.tensors[tables[0]]))
    raise RheoscopeError(Message("the bias of the scores is neither linear in the distance nor made of buckets"))


def _alibi(bias: Float[Tensor, "h n n"], mask: Bool[Tensor, "n n"]) -> ALiBi | None:
    """ALiBi, if the bias falls linearly with the distance, up to a constant for every query."""
    n, last = bias.shape[-1], bias[:, -1]
    slopes = (last[:, -1] - last[:, 0]) / (n - 1)
    i, j = torch.arange(n, device=last.device)[:, None], torch.arange(n, device=last.device)
    gap = torch.where(mask, bias + slopes[:, None, None] * (i - j).abs(), 0)
    centred = torch.where(mask, gap - gap[:, :, :1], 0)
    return ALiBi(slopes) if float(centred.abs().max()) <= NEAR_BIAS else None


def _bucket_tables(tape: Tape, call: SoftmaxCall) -> list[Value]:
    """Weights (buckets, heads) from which the bias of the scores is looked up."""
    behind = tape.ancestors(call.scores, call.boundary)
    lookups = [tape.operation_of(v) for v in sorted(behind)]
    tables = [x.operands[0] for x in lookups if x is not None and x.name in ("embedding", "index") and x.operands]
    return [
        v for v in dict.fromkeys(tables) if tape.template(v).ndim == 2 and tape.template(v).shape[1] == len(call.scale)
    ]


def _buckets(tape: Tape, call: SoftmaxCall, table: Float[Tensor, "buckets h"]) -> Buckets:
    """T5's buckets with the largest distance that reproduces the bias near and far from the diagonal.

    Each query is moved by another shift, so that those of one text are at many distances from the keys that they see.
    """
    assert call.bias is not None
    mover = _bias_positions(tape, call)
    if mover is None:
        raise RheoscopeError(Message("the bias of the scores does not follow positions"))
    steps = torch.arange(tape.n_tokens, device=call.bias.device).cumsum(0)
    shifts = [start + steps for start in range(0, FARTHEST_BUCKET, int(steps[-1]) + tape.n_tokens)]
    recorded = [(mover, 0 * steps, call.bias), *((mover, x, _shifted_bias(tape, call, mover, x)) for x in shifts)]
    for max_distance in MAX_DISTANCES:
        for is_bidirectional in (True, False):
            if max_distance <= len(table) // (4 if is_bidirectional else 2):
                continue
            buckets = Buckets(table.detach(), max_distance, is_bidirectional)
            if all(_is_bias(buckets, *x, call.mask) for x in recorded):
                return buckets
    raise RheoscopeError(Message("the bias of the scores is looked up from a table, but not by T5's buckets"))


def _is_bias(
    buckets: Buckets,
    mover: Mover,
    shifts: Int[Tensor, " n"],
    bias: Float[Tensor, "h n n"],
    mask: Bool[Tensor, "n n"],
) -> bool:
    """Whether buckets give this bias, where queries are later by their shifts, or keys earlier by theirs."""
    i = torch.arange(bias.shape[-1], device=bias.device)
    queries, keys = (i + shifts, i) if mover[1] > 0 else (i, i - shifts.flip(0))
    gap = torch.where(mask, buckets.bias(queries, keys).to(bias) - bias, 0.0)
    return float(gap.abs().max()) <= NEAR_BIAS


def _bias_positions(tape: Tape, call: SoftmaxCall) -> Mover | None:
    """The positions of queries that decide the bias, or those of keys, with the sign by which queries move."""
    assert call.bias is not None
    behind = tape.ancestors(call.scores, call.boundary)
    for value in sorted(v for v in behind if is_arange(tape, v)):
        for sign in (1, -1):
            near = _shifted_bias(tape, call, (value, sign), torch.ones_like(tape.tensors[value]))
            moves = torch.where(call.mask[1:] & call.mask[:-1], near[:, :-1] - call.bias[:, 1:], 0.0)
            changes = torch.where(call.mask, near - call.bias, 0.0)
            if float(moves.abs().max()) <= NEAR_BIAS < float(changes.abs().max()):
                return value, sign
    return None


def _shifted_bias(tape: Tape, call: SoftmaxCall, mover: Mover, shifts: Int[Tensor, " n"]) -> Float[Tensor, "h n n"]:
    """The bias of queries that are later by these shifts, or of keys that are earlier by the same in reverse order."""
    value, sign = mover
    x = tape.tensors[value]
    return constant_scores(tape, call, {value: x + shifts.to(x) if sign > 0 else x - shifts.flip(0).to(x)})[0]
