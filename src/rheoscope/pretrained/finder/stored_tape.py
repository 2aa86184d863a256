"""A tape as text: its operations and module calls by name, without the weights and the points that went through them.

What is read again is bound to a network. Its tensors are computed only when they are needed, from the weights of that network.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from rheoscope.pretrained.finder.tape import (
    SHAPE_OPERATIONS,
    ModuleCall,
    Operand,
    Operation,
    Tape,
    Value,
    WriteView,
    functional,
    tensors_of,
    with_tensors,
)

OPTIONS: dict[str, tuple[type, Callable[[str], Any]]] = {
    "dtype": (torch.dtype, partial(getattr, torch)),
    "layout": (torch.layout, partial(getattr, torch)),
    "memory_format": (torch.memory_format, partial(getattr, torch)),
    "device": (torch.device, torch.device),
}
"""Arguments that are stored by name: their class, and how a name becomes one."""


class TapeError(Exception):
    """A tape has something that cannot be stored."""


def to_text(tape: Tape, network: nn.Module) -> tuple[str, dict[str, Tensor]]:
    """A tape as JSON, and the tensors that no operation makes and that are no weights of the network."""
    names = {id(x): name for name, x in (*network.named_parameters(), *network.named_buffers())}
    modules = {module: name for name, module in network.named_modules()}
    sources = [v for v in range(len(tape.tensors)) if v not in tape.producer]
    kinds: dict[tuple[str, str], int] = {}
    stored = {
        "operations": [
            [_function_name(x.function), _encode(x.args), _encode(x.kwargs), x.results, _name(modules, x.module)]
            for x in tape.operations
        ],
        "calls": [
            [
                modules[x.module],
                x.inputs,
                x.outputs,
                x.first_operation,
                x.last_operation,
                *map(_encode_known, (x.args, x.kwargs)),
            ]
            for x in tape.calls
        ],
        "shapes": [
            [kinds.setdefault((str(x.dtype), str(x.device)), len(kinds)), *x.shape]
            for x in map(tape.template, range(len(tape.tensors)))
        ],
        "kinds": list(kinds),
        "weights": {v: names[id(tape.tensors[v])] for v in sources if id(tape.tensors[v]) in names},
        "equal_values": tape.equal_values,
        "copies": [[modules[module], modules[original]] for module, original in tape.copies],
        "n_tokens": tape.n_tokens,
        "has_own_size": tape.has_own_size,
    }
    constants = {str(v): tape.tensors[v] for v in sources if id(tape.tensors[v]) not in names}
    return json.dumps(stored), constants


def _name(modules: dict[nn.Module, str], module: nn.Module | None) -> str | None:
    return None if module is None else modules[module]


def from_text(text: str, constants: dict[str, Tensor], network: nn.Module) -> Tape:
    """The tape of a text of JSON, bound to a network."""
    stored = json.loads(text, object_hook=_decode)
    modules = {None: None, **dict(network.named_modules())}
    weights = dict([*network.named_parameters(), *network.named_buffers()])
    functions: dict[str, Any] = {}
    operations = []
    for name, args, kwargs, results, module in stored["operations"]:
        if name not in functions:
            functions[name] = _function(name)
        operations.append(Operation(functions[name], tuple(args), kwargs, tuple(results), modules[module]))
    kinds = [(_decode({"dtype": dtype}), torch.device(device)) for dtype, device in stored["kinds"]]
    templates = _Templates(stored["shapes"], kinds)
    tape = Tape(
        stored["n_tokens"],
        operations,
        [
            ModuleCall(modules[name], tuple(inputs), tuple(outputs), first, last, tuple(args), kwargs)
            for name, inputs, outputs, first, last, args, kwargs in stored["calls"]
        ],
        templates=templates,
        equal_values=stored["equal_values"],
        copies=tuple((modules[name], modules[original]) for name, original in stored["copies"]),
        has_own_size=stored["has_own_size"],
    )
    sources = {int(v): weights[name] for v, name in stored["weights"].items()}
    sources |= {int(v): x.to(templates[int(v)].device) for v, x in constants.items()}
    tape.tensors = _Computed(tape, sources, len(templates))
    return tape


def bound_to(tape: Tape, original: nn.Module, module: nn.Module) -> Tape:
    """A stored tape with the weights and modules of another layer in place of those of one that has the same graph.

    Numbers of tensors stay the same. Whatever was found without a weight or module of the layer is taken over.
    """
    if module is original:
        return tape
    computed = tape.tensors
    assert isinstance(computed, _Computed)
    modules = dict(zip(original.modules(), module.modules(), strict=True))
    tensors = dict(zip(map(id, _weights(original)), _weights(module), strict=True))
    own = {v: tensors[id(x)] for v, x in computed.sources.items() if id(x) in tensors}
    changed = tape.descendants(set(own)) | modules.keys()
    bound = BoundTape(
        tape.n_tokens, tape.operations, tape.calls,
        templates=tape.templates, equal_values=tape.equal_values, has_own_size=tape.has_own_size,
        base=tape, modules=modules, changed=changed,
    )  # fmt: skip
    bound.tensors = _Computed(bound, own, len(computed), computed)
    return bound


def _weights(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


@dataclass(eq=False)
class BoundTape(Tape):
    """The tape of a layer with the modules of another one. `changed` are the tensors and modules that differ."""

    base: Tape = field(kw_only=True)
    modules: dict[nn.Module, nn.Module] = field(default_factory=dict)
    changed: set[Any] = field(default_factory=set)

    @property
    def original(self) -> Tape:
        return self.base

    def own(self, module: nn.Module) -> nn.Module:
        return self.modules.get(module, module)

    @cached_property
    def producer(self) -> dict[Value, int]:
        return self.base.producer

    @cached_property
    def readers(self) -> dict[Value, list[int]]:
        return self.base.readers

    @cached_property
    def returned(self) -> set[Value]:
        return self.base.returned

    def share(self, key: Any, make: Callable[[], Any]) -> Any:
        """The result for the original layer, if nothing was read for it that differs."""
        result, reads = self.base.shared.get(key, (None, self.changed))
        return result if self.changed.isdisjoint(reads) else super().share(key, make)


class _Templates(Sequence[Tensor]):
    """Tensors of some shapes, all of whose numbers are missing (NaN)."""

    def __init__(self, shapes: list[list[int]], kinds: list[tuple[torch.dtype, torch.device]]) -> None:
        self.shapes = shapes
        self.made: dict[Value, Tensor] = {}
        self.missing = [torch.full((), float("nan") if x.is_floating_point else 0, dtype=x, device=y) for x, y in kinds]

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, value: Value) -> Tensor:  # type: ignore[override]
        if value not in self.made:
            kind, *shape = self.shapes[value]
            self.made[value] = self.missing[kind].expand(shape)
        return self.made[value]


class _Computed(Sequence[Tensor]):
    """The tensors of a tape, each computed when it is first read. Those of a bound tape that do not change are the `original` ones."""

    def __init__(
        self, tape: Tape, sources: dict[Value, Tensor], length: int, original: "_Computed | None" = None
    ) -> None:
        self.tape, self.sources, self.length, self.original = tape, sources, length, original
        self.available = dict(sources)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, value: Value) -> Tensor:  # type: ignore[override]
        self.tape.reads[-1].add(value)
        if self.original is not None and not self._is_changed(value):
            return self.original[value]
        if value not in self.available:
            self._compute(value)
        return self.available[value]

    def _is_changed(self, value: Value) -> bool:
        return isinstance(self.tape, BoundTape) and value in self.tape.changed

    @torch.no_grad()
    def _compute(self, value: Value) -> None:
        tape = self.tape
        missing = (v for v in tape.ancestors(value, set(self.available)) if v not in self.available)
        needed = {tape.producer[v] for v in missing if self.original is None or self._is_changed(v)}
        for index in sorted(needed):
            operation = tape.operations[index]
            current = tape.template if operation.name in SHAPE_OPERATIONS else self.__getitem__
            args, kwargs = with_tensors((operation.args, operation.kwargs), current)
            out = functional(operation.function)(*args, **kwargs)
            self.available.update(zip(operation.results, tensors_of(out), strict=True))


def _function_name(function: Any) -> Any:
    if isinstance(function, WriteView):
        return {"write": [str(function.function), _encode(function.args), _encode(function.kwargs), function.index]}
    if not isinstance(function, torch._ops.OpOverload):
        raise TapeError(str(function))
    return str(function)


def _function(name: Any) -> Any:
    """The operation of PyTorch with this name: aten.mm.default."""
    if isinstance(name, WriteView):
        return name
    namespace, operation, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), operation), overload)


def _encode(arguments: Any) -> Any:
    """Arguments as JSON: operands, tuples and options as objects of one field."""
    if arguments is None or isinstance(arguments, bool | int | float | str):
        return arguments
    if isinstance(arguments, Operand):
        return {"value": arguments.value}
    if isinstance(arguments, tuple):
        return {"tuple": [_encode(x) for x in arguments]}
    if isinstance(arguments, list):
        return [_encode(x) for x in arguments]
    if isinstance(arguments, dict):
        return {"dict": [[name, _encode(x)] for name, x in arguments.items()]}
    for name, (option, _) in OPTIONS.items():
        if isinstance(arguments, option):
            return {name: str(arguments).removeprefix("torch.")}
    raise TapeError(type(arguments).__name__)


def _encode_known(arguments: Any) -> Any:
    """The same for the arguments of a module, without those that cannot be stored."""
    if isinstance(arguments, tuple | list):
        return {"tuple": [_encode_known(x) for x in arguments]}
    if isinstance(arguments, dict):
        return {"dict": [[name, _encode_known(x)] for name, x in arguments.items()]}
    try:
        return _encode(arguments)
    except TapeError:
        return None


def _decode(fields: dict[str, Any]) -> Any:
    """What an object of one field stands for. Others stay as they are."""
    if len(fields) != 1:
        return fields
    ((name, x),) = fields.items()
    if name == "value":
        return Operand(x)
    if name == "tuple":
        return tuple(x)
    if name == "dict":
        return dict(x)
    if name == "write":
        function, args, kwargs, index = x
        return WriteView(_function(function), args, kwargs, index)
    return OPTIONS[name][1](x.removeprefix("torch.")) if name in OPTIONS else fields
