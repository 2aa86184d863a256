"""What becomes of the outputs of heads: the output weight, its factors and bias, and a norm after attention."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.chains import Normalisation, Weight, frontier
from rheoscope.pretrained.finder.coordinates import coordinate_map, filled_with
from rheoscope.pretrained.finder.gates import Gate, find_gate
from rheoscope.pretrained.finder.head_matrices import module_call_of, read_norm
from rheoscope.pretrained.finder.softmax_calls import SoftmaxCall
from rheoscope.pretrained.finder.stream import HalfLayer
from rheoscope.pretrained.finder.tape import Tape, Value
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model_parts import Norm


@dataclass(frozen=True, eq=False)
class HeadOutputs:
    """W_O (h, e, d) and b_O, the norm after attention, and the module that reads the outputs of all heads."""

    W_O: Float[Tensor, "h e d"]
    b_O: Float[Tensor, " d"] | None
    norm: Norm | None
    projection: nn.Module | None
    gate: Gate | None


def read_outputs(tape: Tape, call: SoftmaxCall, half: HalfLayer, tokens: set[Value]) -> HeadOutputs:
    """The chain from the outputs of the heads to what attention adds to the stream."""
    assert half.update is not None
    behind = tape.descendants({call.output}, tape.producer[half.update] + 1)
    (stage, *more) = frontier(tape, half.update, behind, call.output)
    norm = None
    if not more and isinstance(stage, Normalisation):
        (weight, *more) = frontier(tape, stage.source, behind, call.output)
        norm_source, result = stage.source, half.update
        norm = _scaled(read_norm(tape, stage, norm_source, result), half.factor)
        target = norm_source
    else:
        weight, target = stage, half.update
    if more or not isinstance(weight, Weight):
        raise RheoscopeError(Message("the outputs of the heads reach the stream through no single weight matrix"))
    if frontier(tape, weight.source, behind, call.output) != [call.output]:
        raise RheoscopeError(Message("a norm or a weight lies between the heads and their output matrix"))
    gate = find_gate(tape, call, weight, behind, tokens)
    open_gate = {} if gate is None else {gate.other: filled_with(tape, gate.other, 1.0)}
    rows, after = (
        coordinate_map(tape, call.output, weight.source, open_gate),
        coordinate_map(tape, weight.result, target),
    )
    n_heads, width = len(call.scale), tape.tensors[call.output].shape[-1]
    matrix = tape.tensors[weight.matrix]
    matrix = matrix.reshape(matrix.shape[-2:])
    factor = half.factor if norm is None else 1.0
    order = torch.empty_like(rows.index).scatter_(
        0, rows.index, torch.arange(len(rows.index), device=rows.index.device)
    )
    in_order = bool((order == torch.arange(len(order), device=order.device)).all())
    W_O = (matrix if in_order else matrix[order]).unflatten(0, (n_heads, width))
    scale = rows.gain[order].view(n_heads, width, 1) * after.gain * factor
    W_O = W_O if bool((scale == 1).all()) else W_O * scale.to(W_O)
    bias = after.bias * factor
    if weight.bias is not None:
        bias = bias + tape.tensors[weight.bias].double().flatten() * after.gain * factor
    projection = module_call_of(tape, weight.source, weight.result)
    plain_bias = None if weight.bias is None else tape.tensors[weight.bias].flatten()
    is_plain = bool((after.gain * factor == 1).all()) and bool((after.bias == 0).all())
    b_O = plain_bias if is_plain else (bias.to(W_O) if bool((bias != 0).any()) else None)
    return HeadOutputs(W_O, b_O, norm, None if projection is None else projection.module, gate)


def _scaled(norm: Norm, factor: float) -> Norm:
    if factor == 1:
        return norm
    gain = torch.tensor(factor) if norm.gain is None else norm.gain * factor
    return Norm(lambda x: norm.apply(x) * factor, gain, None if norm.bias is None else norm.bias * factor, norm.eps)
