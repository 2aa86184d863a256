"""What becomes of the outputs of heads: the output weight, its factors and bias, and a norm after attention."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.chains import Normalisation, Weight, frontier
from rheoscope.pretrained.finder.coordinates import coordinate_map, filled_with
from rheoscope.pretrained.finder.gates import Gate, find_gate
from rheoscope.pretrained.finder.head_matrices import module_between, read_norm
from rheoscope.pretrained.finder.norm_of_heads import find_norm_of_heads, read_norm_of_heads
from rheoscope.pretrained.finder.softmax_calls import SoftmaxCall
from rheoscope.pretrained.finder.stream import HalfLayer
from rheoscope.pretrained.finder.tape import Tape, Value
from rheoscope.shapes import RheoscopeError
from rheoscope.space.heads_norm import HeadsNorm
from rheoscope.space.model_parts import Norm


@dataclass(frozen=True, eq=False)
class HeadOutputs:
    """W_O (h, e, d) and b_O, the norms before W_O and after attention, and the module that reads the outputs of all heads."""

    W_O: Float[Tensor, "h e d"]
    b_O: Float[Tensor, " d"] | None
    norm: Norm | None
    projection: nn.Module | None
    gate: Gate | None
    heads_norm: HeadsNorm | None = None


def read_outputs(tape: Tape, call: SoftmaxCall, half: HalfLayer, tokens: set[Value]) -> HeadOutputs:
    """The chain from the outputs of the heads to what attention adds to the stream."""
    assert half.update is not None
    behind = tape.descendants(set(call.outputs), tape.producer[half.update] + 1)
    (stage, *more) = frontier(tape, half.update, behind, *call.outputs)
    norm, weight, target = None, stage, half.update
    if not more and isinstance(stage, Normalisation):
        (weight, *more) = frontier(tape, stage.source, behind, *call.outputs)
        norm = _scaled(read_norm(tape, stage, stage.source, half.update), half.factor)
        target = stage.source
    if more or not isinstance(weight, Weight):
        raise RheoscopeError(Message("the outputs of the heads reach the stream through no single weight matrix"))
    gate = find_gate(tape, call, weight, behind, tokens)
    after = output_columns(tape, weight, target, half.factor if norm is None else 1.0)
    module = module_between(tape, weight.source, weight.result)
    stage_of_heads = find_norm_of_heads(tape, call, weight, behind)
    if stage_of_heads is None:
        return HeadOutputs(_rows_of_heads(tape, call, weight, after, gate), after.bias, norm, module, gate)
    if gate is not None:
        raise RheoscopeError(Message("a gate and a norm lie between the heads and their output matrix"))
    heads_norm = read_norm_of_heads(tape, call, stage_of_heads, weight.source)
    W = after.matrix if after.is_plain else after.matrix * after.gain.to(after.matrix)
    constant = heads_norm.bias.to(W) @ W
    constant = constant if after.bias is None else constant + after.bias
    b_O = constant if bool((constant != 0).any()) else None
    return HeadOutputs(heads_norm.fold(W), b_O, norm, module, None, heads_norm)


@dataclass(frozen=True, eq=False)
class OutputColumns:
    """The output matrix (r, d), the factors of its columns, and the constant that is added to the stream."""

    matrix: Float[Tensor, "r d"]
    gain: Float[Tensor, " d"]
    bias: Float[Tensor, " d"] | None

    @property
    def is_plain(self) -> bool:
        return bool((self.gain == 1).all())


def output_columns(tape: Tape, weight: Weight, target: Value, factor: float) -> OutputColumns:
    """The output matrix with what follows it."""
    after = coordinate_map(tape, weight.result, target)
    matrix = tape.tensors[weight.matrix]
    matrix = matrix.reshape(matrix.shape[-2:])
    gain, bias = after.gain * factor, after.bias * factor
    own_bias = None if weight.bias is None else tape.tensors[weight.bias].flatten()
    if bool((gain == 1).all()) and bool((bias == 0).all()):
        return OutputColumns(matrix, gain, own_bias)
    bias = bias if own_bias is None else bias + own_bias.double() * gain
    return OutputColumns(matrix, gain, bias.to(matrix) if bool((bias != 0).any()) else None)


def _rows_of_heads(
    tape: Tape, call: SoftmaxCall, weight: Weight, after: OutputColumns, gate: Gate | None
) -> Float[Tensor, "h e d"]:
    """The rows of the output matrix that belong to each head, with their factors; a view of the matrix if there are none."""
    open_gate = {} if gate is None else {gate.other: filled_with(tape, gate.other, 1.0)}
    rows = coordinate_map(tape, call.output, weight.source, open_gate)
    n_heads, width = len(call.scale), tape.template(call.output).shape[-1]
    numbers = torch.arange(len(rows.index), device=rows.index.device)
    order = torch.empty_like(rows.index).scatter_(0, rows.index, numbers)
    in_order = torch.equal(order, numbers)
    W_O = (after.matrix if in_order else after.matrix[order]).unflatten(0, (n_heads, width))
    if after.is_plain and bool((rows.gain == 1).all()):
        return W_O
    return W_O * (rows.gain[order].view(n_heads, width, 1) * after.gain).to(W_O)


def _scaled(norm: Norm, factor: float) -> Norm:
    if factor == 1:
        return norm
    gain = torch.tensor(factor) if norm.gain is None else norm.gain * factor
    return Norm(lambda x: norm.apply(x) * factor, gain, None if norm.bias is None else norm.bias * factor, norm.eps)
