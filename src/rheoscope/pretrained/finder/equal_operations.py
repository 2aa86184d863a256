"""Which parts of a tape repeat: layers of one kind run the same operations, so what depends on them alone is computed once."""

from collections.abc import Callable, Sequence
from typing import Any

from rheoscope.pretrained.finder.tape import Operand, Operation, Tape, Value, needed_operations

UNDETERMINED = frozenset({"empty", "new_empty", "empty_like", "rand", "randn", "rand_like", "randn_like", "bernoulli"})
"""Operations whose results may differ although their arguments are the same."""

NUMBERS = frozenset({bool, int, float})


def value_numbers(tape: Tape) -> list[int]:
    """A number for every tensor of a tape, the same for tensors that equal operations make of the same tensors."""
    if not tape.equal_values:
        tape.equal_values.extend(_value_numbers(tape))
    return tape.equal_values


def _value_numbers(tape: Tape) -> list[int]:
    numbers = list(range(len(tape.tensors)))
    first: dict[Any, tuple[Value, ...]] = {}
    for operation in tape.operations:
        if operation.name in UNDETERMINED:
            continue
        key = operation_key(operation, numbers.__getitem__)
        results = first.setdefault(key, operation.results)
        for value, earlier in zip(operation.results, results, strict=True):
            numbers[value] = earlier
    return numbers


def replay_key(tape: Tape, targets: Sequence[Value], source: Value) -> Any:
    """What decides the numbers of a replay, apart from those that take the place of `source`.

    It holds the operations on the way and the tensors that they read. Replays with equal keys give equal results for equal numbers.
    """
    numbers, local = value_numbers(tape), {source: -1}
    steps = []
    for operation in needed_operations(tape, list(targets), {source}):
        steps.append(operation_key(operation, lambda v: local.get(v, numbers[v])))
        for value in operation.results:
            local[value] = -1 - len(local)
    x = tape.template(source)
    return x.shape, x.dtype, x.device, tuple(steps), tuple(local.get(v, numbers[v]) for v in targets)


def operation_key(operation: Operation, number_of: Callable[[Value], Any]) -> Any:
    """An operation with a number for every tensor that it reads."""
    return operation.function, hashable(operation.args, number_of), hashable(operation.kwargs, number_of)


def hashable(arguments: Any, number_of: Callable[[Value], Any]) -> Any:
    """Nested arguments as tuples, with a number for every tensor. A number of Python carries its type: 1, 1.0 and True differ."""
    kind = type(arguments)
    if kind is Operand:
        return Operand(number_of(arguments.value))
    if kind is tuple or kind is list:
        return tuple([hashable(x, number_of) for x in arguments])
    if kind is dict:
        return tuple([(name, hashable(x, number_of)) for name, x in arguments.items()])
    return (kind, arguments) if kind in NUMBERS else arguments
