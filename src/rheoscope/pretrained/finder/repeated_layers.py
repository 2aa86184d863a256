"""A tape without the layers that repeat an earlier one: the graph of each kind of layer once, and which weights take its place."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn

from rheoscope.pretrained.finder.blocks import Block, is_stack
from rheoscope.pretrained.finder.entry_norms import entry_norm
from rheoscope.pretrained.finder.equal_operations import hashable, operation_key, value_numbers
from rheoscope.pretrained.finder.softmax_calls import softmax_indices
from rheoscope.pretrained.finder.tape import (
    ModuleCall,
    Operand,
    Operation,
    Tape,
    Value,
    operand_values,
    with_tensors,
)

LARGEST_COMPARED = 64
"""The size up to which constants are compared by their numbers."""


def without_repeats(tape: Tape, network: nn.Module, n_layers: int) -> Tape:
    """The tape without layers whose graph is that of an earlier one, as if they added nothing to the points.

    `copies` of the result has every layer with the one that is kept for it. The tape itself is returned if it has other layers than the
    `n_layers` that were described, or if something outside of a layer reads more than its points.
    """
    layers = [layer for parent in _lists_of_layers(tape, network) for layer in _layers_of(tape, parent)]
    if len(layers) != n_layers:
        return tape
    originals: dict[Any, nn.Module] = {}
    try:
        copies = tuple((x.call.module, originals.setdefault(_graph(tape, x), x.call.module)) for x in layers)
    except TypeError:  # an argument that cannot be compared
        return tape
    repeats = [layer for layer, (module, original) in zip(layers, copies, strict=True) if module is not original]
    return _without(tape, repeats, copies) if repeats else tape


def _lists_of_layers(tape: Tape, network: nn.Module) -> Iterator[list[ModuleCall]]:
    """The calls of the members of every list of layers, in order. Lists inside of a member are parts of a layer."""
    calls: dict[nn.Module, list[ModuleCall]] = {}
    for call in tape.calls:
        calls.setdefault(call.module, []).append(call)
    inside = set[nn.Module]()
    for parent in network.modules():
        if not isinstance(parent, nn.ModuleList) or parent in inside:
            continue
        members = [call for module in parent for call in calls.get(module, ())]
        if len(members) == len(parent) and all(_has_softmax(tape, call) for call in members):
            inside.update(module for member in parent for module in member.modules())
            yield sorted(members, key=lambda call: call.first_operation)


def _has_softmax(tape: Tape, call: ModuleCall) -> bool:
    return any(call.first_operation <= index < call.last_operation for index in softmax_indices(tape))


def _layers_of(tape: Tape, calls: Sequence[ModuleCall]) -> Iterator[Block]:
    """The layers that read points and return points. Those that begin with a norm of the stream end in the next layer."""
    for call in calls:
        output = next(iter(call.outputs), None)
        shape = None if output is None else tape.template(output).shape
        points = next((v for v in call.inputs if tape.template(v).shape == shape), None)
        if points is None or output is None or is_stack(tape, points):
            continue
        softmax = next(i for i in softmax_indices(tape) if call.first_operation <= i < call.last_operation)
        block = Block(call, points, output, softmax)
        if entry_norm(tape, block) is None:
            yield block


def _graph(tape: Tape, layer: Block) -> Any:
    """What runs inside of a layer: equal for layers that differ in their weights alone."""
    call, numbers = layer.call, value_numbers(tape)
    names = {module: name for name, module in call.module.named_modules()}
    weights = {id(x): name for name, x in (*call.module.named_parameters(), *call.module.named_buffers())}
    local: dict[Value, Any] = {layer.points: "points"}

    def number_of(value: Value) -> Any:
        if value not in local:
            local[value] = _outer(tape, value, weights, numbers[value])
        return local[value]

    steps = []
    for operation in tape.operations[call.first_operation : call.last_operation]:
        steps.append((operation_key(operation, number_of), names.get(operation.module)))
        local |= {value: len(local) + index for index, value in enumerate(operation.results)}
    inner = [
        (
            names[x.module],
            *(tuple(map(number_of, values)) for values in (x.inputs, x.outputs)),
            x.first_operation - call.first_operation,
            x.last_operation - call.first_operation,
            hashable((x.args, x.kwargs), number_of),
        )
        for x in _inner_calls(tape, call)
    ]
    classes = tuple((name, type(module)) for module, name in names.items())
    return tuple(steps), tuple(inner), classes, number_of(layer.output)


def _outer(tape: Tape, value: Value, weights: dict[int, str], number: int) -> Any:
    """A tensor that no operation of the layer makes: one of its weights, a small constant, or anything else."""
    x = tape.tensors[value]
    if value not in tape.producer and id(x) in weights:
        return "weight", weights[id(x)], x.shape, x.dtype, x.device
    if value not in tape.producer and x.numel() <= LARGEST_COMPARED and not isinstance(x, nn.Parameter):
        return "constant", x.shape, x.dtype, tuple(x.flatten().tolist())
    return "tensor", number


def _inner_calls(tape: Tape, call: ModuleCall) -> list[ModuleCall]:
    """The calls inside of a call, which end right before it, and the call itself."""
    end = tape.calls.index(call)
    inner, modules = [call], set(call.module.modules())
    for x in reversed(tape.calls[:end]):
        if x.module not in modules or x.first_operation < call.first_operation:
            break
        inner.append(x)
    return inner[::-1]


def _without(tape: Tape, layers: Sequence[Block], copies: tuple[tuple[nn.Module, nn.Module], ...]) -> Tape:
    """The tape as if some layers returned their points."""
    is_retained = [True] * len(tape.operations)
    removed_calls, points_of = set[int](), dict[Value, Value]()
    for layer in layers:
        points_of[layer.output] = layer.points
        removed_calls |= {id(call) for call in _inner_calls(tape, layer.call)}
        for index in range(layer.call.first_operation, layer.call.last_operation):
            is_retained[index] = False
    operations = [x for x, retained in zip(tape.operations, is_retained, strict=True) if retained]
    calls = [call for call in tape.calls if id(call) not in removed_calls]
    removed = {v for x, retained in zip(tape.operations, is_retained, strict=True) if not retained for v in x.results}

    def source(value: Value) -> Value:
        while value in points_of:
            value = points_of[value]
        return value

    used = {source(v) for steps in (operations, calls) for x in steps for v in _values(x)}
    if not used.isdisjoint(removed):
        return tape
    numbers = {value: number for number, value in enumerate(sorted(used))}
    places = [0]
    for retained in is_retained:
        places.append(places[-1] + retained)
    renumbered = _Renumbered(lambda value: numbers[source(value)], places)
    short = Tape(
        tape.n_tokens,
        [renumbered.operation(x) for x in operations],
        [renumbered.call(x) for x in calls],
        [tape.tensors[value] for value in sorted(used)],
        has_own_size=tape.has_own_size,
        copies=copies,
    )
    value_numbers(short)
    return short


def _values(x: Operation | ModuleCall) -> Iterator[Value]:
    """All tensors of an operation or of a call, those whose shapes alone are read included."""
    yield from operand_values((x.args, x.kwargs))
    yield from x.results if isinstance(x, Operation) else (*x.inputs, *x.outputs)


class _Renumbered:
    """Operations and calls with other numbers of tensors, at other places."""

    def __init__(self, number_of: Callable[[Value], Value], places: list[int]) -> None:
        self.number_of, self.places = number_of, places

    def operation(self, x: Operation) -> Operation:
        results = tuple(map(self.number_of, x.results))
        return Operation(x.function, self._arguments(x.args), self._arguments(x.kwargs), results, x.module)

    def call(self, x: ModuleCall) -> ModuleCall:
        inputs, outputs = (tuple(map(self.number_of, values)) for values in (x.inputs, x.outputs))
        first, last = self.places[x.first_operation], self.places[x.last_operation]
        return ModuleCall(x.module, inputs, outputs, first, last, self._arguments(x.args), self._arguments(x.kwargs))

    def _arguments(self, arguments: Any) -> Any:
        return with_tensors(arguments, lambda value: Operand(self.number_of(value)))  # type: ignore[arg-type, return-value]
