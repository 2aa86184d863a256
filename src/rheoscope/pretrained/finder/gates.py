"""Gated attention on a tape: outputs of heads times numbers of their own token."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.chains import Weight, is_token_linear, unknown_operation
from rheoscope.pretrained.finder.coordinate_choice import coordinate_choice
from rheoscope.pretrained.finder.coordinates import coordinate_map, filled_with, token_rows
from rheoscope.pretrained.finder.head_matrices import apply_weight
from rheoscope.pretrained.finder.projections import layout_source, match_parts
from rheoscope.pretrained.finder.softmax_calls import SoftmaxCall
from rheoscope.pretrained.finder.tape import Operation, Tape, Value, replay
from rheoscope.shapes import RheoscopeError

ACTIVATIONS = frozenset({"sigmoid", "silu", "tanh", "relu", "softplus", "gelu", "exp"})
"""Functions of one number between the weight of a gate and its factors."""


@dataclass(frozen=True, eq=False)
class Gate:
    """A product of the outputs of heads with numbers of their own token. `other` has those numbers, `product` the result."""

    other: Value
    product: Value


def find_gate(tape: Tape, call: SoftmaxCall, weight: Weight, behind: set[Value], tokens: set[Value]) -> Gate | None:
    """The gate between the heads and their output matrix, if there is one."""
    between = tape.ancestors(weight.source, set(call.outputs)) & behind - set(call.outputs)
    gates = []
    for value in sorted(between):
        operation = tape.operation_of(value)
        others = [] if operation is None else [x for x in operation.operands if x in tokens and x not in behind]
        if operation is not None and others:
            if operation.name != "mul" or len(others) != 1:
                raise unknown_operation(operation)
            gates.append(Gate(others[0], value))
    if len(gates) > 1:
        raise RheoscopeError(Message("the outputs of the heads have {n} gates, expected at most 1", n=len(gates)))
    return gates[0] if gates else None


def read_sinks(tape: Tape, gate: Gate, call: SoftmaxCall) -> Float[Tensor, " h"] | None:
    """The sinks of factors sigmoid(logsumexp(scores) - sink), which scale outputs as a key without a token would; else None."""
    scores = layout_source(tape, call.scores)
    if scores not in tape.ancestors(gate.other, {scores}):
        return None
    logits = [
        token_rows(tape, replay(tape, [gate.other], {scores: filled_with(tape, scores, number)})[0]).logit()
        for number in (0.0, 2.0)
    ]
    sinks = math.log(tape.template(scores).shape[-1]) - logits[0]
    is_sink = bool(torch.isclose(logits[1] - logits[0], torch.tensor(2.0, dtype=torch.float64)).all())
    if not is_sink or sinks.shape[1] != len(call.scale) or not bool(torch.isclose(sinks, sinks[:1]).all()):
        raise RheoscopeError(Message("a gate depends on scores, but not as a sink does"))
    return sinks[0].to(tape.template(scores).dtype)


def gate_function(
    tape: Tape, gate: Gate, call: SoftmaxCall, points: Value, tokens: set[Value]
) -> tuple[Callable[[Float[Tensor, "b n d"]], Float[Tensor, "b h n #e"]], Value]:
    """The factors of every head as a function of what the layer reads, and the tensor that it reads."""
    activation = _activation(tape, gate.other, tokens)
    before, after = activation.operands[0], activation.results[0]
    (part, *more) = match_parts(tape, before, points, tokens)
    if more or part.norm is not None or part.inner is not None:
        raise RheoscopeError(Message("a gate reads more than one weight matrix"))
    ones = {call.output: filled_with(tape, call.output, 1.0)}
    factors = coordinate_map(tape, after, gate.product, ones)
    outputs = coordinate_map(tape, call.output, gate.product, {gate.other: filled_with(tape, gate.other, 1.0)})
    n_heads = len(call.scale)
    order = torch.empty_like(outputs.index).scatter_(
        0, outputs.index, torch.arange(len(outputs.index), device=outputs.index.device)
    )
    index, gain, bias = (x[order].view(n_heads, -1) for x in (factors.index, factors.gain, factors.bias))
    if bool((index == index[:, :1]).all()):
        index, gain, bias = index[:, :1], gain[:, :1], bias[:, :1]
    linear, placement, function = apply_weight(tape, part), part.placement, activation.function
    to_function, of_heads = coordinate_choice(placement.index, placement.gain), coordinate_choice(index, gain)

    def factors_of(u: Tensor) -> Tensor:
        numbers = of_heads(function(to_function(linear(u)) + placement.bias.to(u))) + bias.to(u)
        return numbers.movedim(-2, -3)

    return factors_of, layout_source(tape, part.first.weight.source)


def _activation(tape: Tape, value: Value, tokens: set[Value]) -> Operation:
    """The only function between a weight and a gate that is not linear."""
    pending, activations = [value], list[Operation]()
    while pending:
        operation = tape.operation_of(pending.pop())
        assert operation is not None
        if operation.name in ACTIVATIONS:
            activations.append(operation)
        elif is_token_linear(operation, tokens):
            pending.extend(x for x in operation.operands if x in tokens)
        else:
            raise unknown_operation(operation)
    if len(activations) != 1:
        raise RheoscopeError(Message("a gate has {n} activations, expected 1", n=len(activations)))
    return activations[0]
