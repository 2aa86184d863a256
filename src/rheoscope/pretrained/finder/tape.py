"""A tape: every operation of one forward pass, and every call of a module, with the tensors that went in and came out."""

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

Value = int
"""The number of a tensor on the tape. A tensor that is overwritten gets a new number."""

SHAPE_OPERATIONS = frozenset({
    "new_empty", "new_zeros", "new_ones", "new_full", "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "sym_size",
})  # fmt: skip
"""Operations that read the shape of a tensor and not its numbers."""
VIEW_OPERATIONS = frozenset({
    "view", "slice", "select", "transpose", "permute", "unsqueeze", "squeeze", "t", "expand", "alias", "_reshape_alias", "split", "unbind",
    "as_strided", "view_as_real", "view_as_complex", "split_with_sizes", "chunk", "detach",
})  # fmt: skip
"""Operations whose results share the memory of their first argument."""


@dataclass(frozen=True)
class Operand:
    """A tensor among the arguments of an operation, by its number on the tape."""

    value: Value


NESTED = frozenset({tuple, list, dict})
"""What may hold operands."""
OPERAND_OR_NESTED = NESTED | {Operand}


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation of PyTorch: its function, its arguments with tensors as `Operand`s, and the numbers of its results."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[Value, ...]
    module: nn.Module | None

    @cached_property
    def name(self) -> str:
        """The name without its overload: "mm", "native_layer_norm"."""
        if isinstance(self.function, WriteView):
            return "slice_scatter"
        return self.function.__name__.split(".")[0].removesuffix("_")

    @cached_property
    def operands(self) -> tuple[Value, ...]:
        """The tensors whose numbers it reads."""
        return () if self.name in SHAPE_OPERATIONS else tuple(operand_values((self.args, self.kwargs)))


def operand_values(arguments: Any) -> Iterator[Value]:
    """The tensors among nested arguments, in order."""
    kind = type(arguments)
    if kind is Operand:
        yield arguments.value
    elif kind in NESTED:
        for argument in arguments.values() if kind is dict else arguments:
            if type(argument) in OPERAND_OR_NESTED:
                yield from operand_values(argument)


@dataclass(frozen=True, eq=False)
class ModuleCall:
    """One call of a module: the tensors that it was given and returned, and the operations that ran inside it.

    `args` and `kwargs` have tensors as `Operand`s.
    """

    module: nn.Module
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    first_operation: int
    last_operation: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(eq=False)
class Tape:
    """The operations and module calls of a forward pass in order. `tensors[v]` is the tensor with number v.

    The text has `n_tokens` tokens, a number that no other axis has, so that the axis of tokens can be recognised.
    """

    n_tokens: int
    operations: list[Operation] = field(default_factory=list)
    calls: list[ModuleCall] = field(default_factory=list)
    tensors: Sequence[Tensor] = field(default_factory=list)
    shared: dict[Any, tuple[Any, set[Any]]] = field(default_factory=dict)
    """What several layers have in common, such as masks and rotary tables, by what it is made of, with what was read for it."""
    reads: list[set[Any]] = field(default_factory=lambda: [set()])
    """The tensors of a stored tape and the modules that were read for each of the nested results that are being computed."""
    equal_values: list[Value] = field(default_factory=list)
    """For every tensor the first one that equal operations make of the same tensors. It is filled when it is first needed."""
    templates: Sequence[Tensor] | None = None
    """Tensors of the same shapes, dtypes and devices, if those of `tensors` are computed only when they are needed."""
    copies: tuple[tuple[nn.Module, nn.Module], ...] = ()
    """Every layer with the one whose graph it has, if layers that repeat an earlier one were removed."""
    has_own_size: bool = False
    """Whether it holds features of the network's own size, so that the places of its tokens are those of every input of this size."""

    @cached_property
    def producer(self) -> dict[Value, int]:
        """Value → the index of the operation that made it. Parameters, buffers and inputs have none."""
        return {value: index for index, operation in enumerate(self.operations) for value in operation.results}

    @cached_property
    def returned(self) -> set[Value]:
        """The tensors that modules return."""
        return {value for call in self.calls for value in call.outputs}

    @cached_property
    def readers(self) -> dict[Value, list[int]]:
        """Value → the indices of the operations that read it."""
        result: dict[Value, list[int]] = {}
        for index, operation in enumerate(self.operations):
            for value in dict.fromkeys(operation.operands):
                result.setdefault(value, []).append(index)
        return result

    def counting(self, n_tokens: int) -> "Tape":
        """The same operations, as those of a text of `n_tokens` tokens."""
        return replace(self, n_tokens=n_tokens, shared={})

    @property
    def original(self) -> "Tape":
        """The tape of the layer whose graph this one has: this tape itself, unless it is that of a copy."""
        return self

    def own(self, module: nn.Module) -> nn.Module:
        """The module that a call of this module stands for: another one if the tape is that of a copy of a layer."""
        self.reads[-1].add(module)
        return module

    def template(self, value: Value) -> Tensor:
        """A tensor with the shape, dtype and device of one on the tape. Its numbers may be missing."""
        return (self.tensors if self.templates is None else self.templates)[value]

    def share(self, key: Any, make: Callable[[], Any]) -> Any:
        """The result of `make`, computed once for each key."""
        if key not in self.shared:
            self.shared[key] = self._with_reads(make)
        result, reads = self.shared[key]
        self.reads[-1].update(reads)
        return result

    def _with_reads(self, make: Callable[[], Any]) -> tuple[Any, set[Any]]:
        """A result, and what was read for it."""
        reads = set[Any]()
        self.reads.append(reads)
        try:
            return make(), reads
        finally:
            self.reads.pop()

    def operation_of(self, value: Value) -> Operation | None:
        """The operation that made a tensor."""
        index = self.producer.get(value)
        return None if index is None else self.operations[index]

    def descendants(self, values: set[Value], last: int | None = None) -> set[Value]:
        """All tensors that depend on these, themselves included, through the operations before `last`."""
        return self.share(("descendants", frozenset(values), last), lambda: self._descendants(values, last))

    def _descendants(self, values: set[Value], last: int | None) -> set[Value]:
        reached = set(values)
        first = min((index for value in values for index in self.readers.get(value, ())[:1]), default=0)
        for operation in self.operations[first:last]:
            if not reached.isdisjoint(operation.operands):
                reached.update(operation.results)
        return reached

    def ancestors(self, value: Value, boundary: Set[Value] = frozenset(), since: Value = 0) -> set[Value]:
        """All tensors that this one depends on, itself included, without those behind a boundary and those before `since`."""
        reached, pending = {value}, [value]
        while pending:
            current = pending.pop()
            operation = None if current in boundary else self.operation_of(current)
            if operation is not None:
                new = {x for x in operation.operands if x >= since and x not in reached}
                reached |= new
                pending.extend(new)
        return reached


@dataclass(frozen=True, eq=False)
class WriteView:
    """The base of a view after new numbers were written through the view."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    index: int

    def __call__(self, base: Tensor, numbers: Tensor) -> Tensor:
        base = base.to(torch.promote_types(base.dtype, numbers.dtype)).clone()
        views = self.function(base, *self.args, **self.kwargs)
        (views if isinstance(views, Tensor) else views[self.index]).copy_(numbers)
        return base


@contextmanager
def record_tape(network: nn.Module, n_tokens: int) -> Iterator[Tape]:
    """Record all operations and module calls of a network that runs inside the block, without gradients."""
    tensors = list[Tensor]()
    tape = Tape(n_tokens, tensors=tensors)
    recorder = _Recorder(tape, tensors)
    with recorder.module_hooks(network), torch.no_grad(), recorder:
        yield tape


class _Recorder(TorchDispatchMode):
    """Numbers every tensor. It keeps all of them alive, so that no identity is used twice."""

    def __init__(self, tape: Tape, tensors: list[Tensor]) -> None:
        super().__init__()
        self.tape, self.tensors = tape, tensors
        self.number: dict[int, Value] = {}
        self.open_modules: list[nn.Module] = []
        self.view_of: dict[int, tuple[Tensor, Any, tuple[Any, ...], dict[str, Any], int]] = {}
        """The id of a view → its base, and the operation, arguments and output index that make it."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        numbered_args, numbered_kwargs = self._numbered(tuple(args)), self._numbered(kwargs)
        out = function(*args, **kwargs)
        tensors = [out] if isinstance(out, Tensor) else [x for x in tree_flatten(out)[0] if isinstance(x, Tensor)]
        results = tuple(self.new_number(x) for x in tensors)
        self._append(function, numbered_args, numbered_kwargs, results)
        if self.tape.operations[-1].name in VIEW_OPERATIONS:
            if out is not args[0]:  # squeeze_() and the like change the shape of a tensor, but no number
                for index, x in enumerate(tensors):
                    self.view_of[id(x)] = args[0], function, args[1:], kwargs, index
        elif function._schema.is_mutable and tensors:
            self._write_to_bases(tensors[0])
        return out

    def _numbered(self, arguments: Any) -> Any:
        """Arguments with operands in place of tensors. Operations of PyTorch nest them in lists, tuples and dicts only."""
        if isinstance(arguments, Tensor):
            return Operand(self.number_of(arguments))
        if isinstance(arguments, tuple | list):
            return type(arguments)(map(self._numbered, arguments))
        if isinstance(arguments, dict):
            return {name: self._numbered(x) for name, x in arguments.items()}
        return arguments

    def _append(self, function: Any, args: Any, kwargs: Any, results: tuple[Value, ...]) -> None:
        module = self.open_modules[-1] if self.open_modules else None
        self.tape.operations.append(Operation(function, args, kwargs, results, module))

    def _write_to_bases(self, x: Tensor) -> None:
        """After a view was overwritten, its base has new numbers too."""
        while id(x) in self.view_of:
            base, function, args, kwargs, index = self.view_of[id(x)]
            operands = Operand(self.number_of(base)), Operand(self.number_of(x))
            write = WriteView(function, args, kwargs, index)
            self._append(write, operands, {}, (self.new_number(base),))
            x = base

    def number_of(self, x: Tensor) -> Value:
        return self.number[id(x)] if id(x) in self.number else self.new_number(x)

    def new_number(self, x: Tensor) -> Value:
        self.tensors.append(x)
        self.number[id(x)] = len(self.tensors) - 1
        return self.number[id(x)]

    def numbers_in(self, values: Any) -> tuple[Value, ...]:
        return tuple(self.number_of(x) for x in tree_flatten(values)[0] if isinstance(x, Tensor))

    @contextmanager
    def module_hooks(self, network: nn.Module) -> Iterator[None]:
        """Hooks that note the inputs and outputs of every module."""
        started: list[tuple[int, tuple[Value, ...], Any, Any]] = []

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            self.open_modules.append(module)
            inputs = self.numbers_in((args, kwargs))
            started.append((len(self.tape.operations), inputs, self._numbered(args), self._numbered(kwargs)))

        def after(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
            self.open_modules.pop()
            first, inputs, *arguments = started.pop()
            self.tape.calls.append(
                ModuleCall(module, inputs, self.numbers_in(out), first, len(self.tape.operations), *arguments)
            )

        handles: list[Any] = []
        for module in network.modules():
            handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(module.register_forward_hook(after, with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def replay(tape: Tape, targets: list[Value], substitutions: dict[Value, Tensor]) -> list[Tensor]:
    """The values of some tensors in float64, computed again with other tensors in place of some on their way.

    Whatever does not depend on the substitutions keeps its recorded value.
    """
    return _replay(tape, targets, substitutions, _wide, _in_float64)


def replay_as_recorded(tape: Tape, targets: list[Value], substitutions: dict[Value, Tensor]) -> list[Tensor]:
    """The same in the types in which the network computes, for steps that depend on rounding, such as buckets.

    Positions beyond the end of a table read its last row.
    """
    return _replay(tape, targets, substitutions, lambda x: x, _call_within_tables)


def _replay(
    tape: Tape,
    targets: list[Value],
    substitutions: dict[Value, Tensor],
    convert: Callable[[Tensor], Tensor],
    call: Callable[[Operation, Any, Any], Any],
) -> list[Tensor]:
    results: dict[Value, Tensor] = {value: convert(x) for value, x in substitutions.items()}

    def current(value: Value) -> Tensor:
        return results[value] if value in results else convert(tape.tensors[value])

    for operation in needed_operations(tape, targets, set(substitutions)):
        out = call(operation, with_tensors(operation.args, current), with_tensors(operation.kwargs, current))
        results.update(zip(operation.results, map(convert, tensors_of(out)), strict=True))
    return [current(target) for target in targets]


def needed_operations(tape: Tape, targets: list[Value], substituted: set[Value]) -> list[Operation]:
    """The operations between some tensors and targets that depend on them, in order."""
    key = "needed operations", tuple(targets), frozenset(substituted)
    needed: list[Operation] = tape.share(key, lambda: _needed_operations(tape, targets, substituted))
    return needed


def _needed_operations(tape: Tape, targets: list[Value], substituted: set[Value]) -> list[Operation]:
    """A tensor with a lower number than all that are substituted was there before, so it does not depend on them."""
    earliest, depends = min(substituted, default=0), dict.fromkeys(substituted, True)
    needed: set[int] = set()
    pending = list(targets)
    while pending:
        value = pending[-1]
        index = tape.producer.get(value)
        if value in depends or value < earliest or index is None:
            depends.setdefault(value, False)
            pending.pop()
            continue
        operands = tape.operations[index].operands
        unknown = [operand for operand in operands if operand not in depends]
        if unknown:
            pending.extend(unknown)
            continue
        depends[value] = any(depends[operand] for operand in operands)
        if depends[value]:
            needed.add(index)
        pending.pop()
    return [tape.operations[index] for index in sorted(needed)]


def tensors_of(out: Any) -> list[Tensor]:
    """The tensors that an operation returns."""
    return [out] if isinstance(out, Tensor) else [x for x in out if isinstance(x, Tensor)]


def with_tensors(arguments: Any, current: Callable[[Value], Tensor]) -> Any:
    """Arguments with tensors in place of operands."""
    kind = type(arguments)
    if kind is Operand:
        return current(arguments.value)
    if kind is dict:
        return {name: with_tensors(x, current) for name, x in arguments.items()}
    if kind in NESTED:
        return kind([with_tensors(x, current) if type(x) in OPERAND_OR_NESTED else x for x in arguments])
    return arguments


def _wide(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def _call(operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return functional(operation.function)(*args, **kwargs)


def _call_within_tables(operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operation, where a lookup beyond its table reads the last row."""
    if operation.name != "index":
        return _call(operation, args, kwargs)
    table, indices = args
    return _call(operation, (table, [_within(x, size) for x, size in zip(indices, table.shape, strict=False)]), kwargs)


def _within(index: Tensor | None, size: int) -> Tensor | None:
    is_mask = index is None or index.dtype in (torch.bool, torch.uint8)
    return index if is_mask else index.clamp(-size, size - 1)  # type: ignore[union-attr]


def _in_float64(operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operation with float64 in place of any narrower type that it names."""

    def widened(x: Any) -> Any:
        return torch.float64 if isinstance(x, torch.dtype) and x.is_floating_point else x

    return _call(operation, tuple(map(widened, args)), {name: widened(x) for name, x in kwargs.items()})


def functional(function: Any) -> Callable[..., Any]:
    """The operation without its effect on its first argument."""
    if isinstance(function, WriteView) or not function._schema.is_mutable:
        return function

    def on_copy(first: Any, *args: Any, **kwargs: Any) -> Any:
        return function(first.clone() if isinstance(first, Tensor) else first, *args, **kwargs)

    return on_copy
