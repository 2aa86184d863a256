"""The feed-forward part of a block as a function: a chain of the block's own modules."""

from collections.abc import Callable
from functools import partial
from inspect import Parameter, signature
from typing import NoReturn

from torch import Tensor, nn

from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.blocks import Layer
from rheoscope.pretrained.finder.projections import same_numbers
from rheoscope.pretrained.finder.stream import BlockStream, StreamReader, without_layer_scale
from rheoscope.pretrained.finder.tape import ModuleCall, Tape, Value
from rheoscope.shapes import RheoscopeError


def feed_forward(tape: Tape, layer: Layer, stream: BlockStream) -> Callable[[Tensor], Tensor]:
    """The displacement by the feed-forward part of a layer. It raises if no chain of modules computes it."""
    start = layer.block.points if stream.is_parallel else stream.before_mlp
    chain, factor, update = None, 1.0, stream.mlp.update
    if not layer.opaque_calls and update is not None:
        key = "feed-forward", layer.block.softmax
        chain, factor = tape.share(key, lambda: _scaled_chain(tape, layer, start, update, stream.mlp.factor))
    if chain is None:
        module = type(layer.block.call.module).__name__
        return partial(
            _refuse, RheoscopeError(Message("the feed-forward part of {module} is no chain of modules", module=module))
        )
    return partial(apply_modules, tuple(tape.own(call.module) for call in chain), factor)


def _scaled_chain(
    tape: Tape, layer: Layer, start: Value, update: Value, factor: float
) -> tuple[list[ModuleCall] | None, float | Tensor]:
    """The modules that lead to an update, and its factor."""
    calls = StreamReader(tape, layer.block).calls
    for end, end_factor in ((update, factor), without_layer_scale(tape, update, factor)):
        chain = module_chain(tape, calls, start, end)
        if chain is not None:
            return chain, end_factor
    return None, factor


def module_chain(tape: Tape, calls: list[ModuleCall], start: Value, end: Value) -> list[ModuleCall] | None:
    """Modules that lead from one tensor to another, the largest first. Each reads only what the one before returns."""
    if same_numbers(tape, start, end):
        return []
    readers = [
        call
        for call in sorted(calls, key=lambda call: call.first_operation - call.last_operation)
        if call.inputs
        and call.outputs
        and same_numbers(tape, call.inputs[0], start)
        and _needs_one_argument(call.module)
    ]
    for call in readers:
        is_step = not same_numbers(tape, call.outputs[0], start)
        rest = module_chain(tape, calls, call.outputs[0], end) if is_step else None
        if rest is not None:
            return [call, *rest]
    return None


def _needs_one_argument(module: nn.Module) -> bool:
    parameters = signature(module.forward).parameters.values()
    kinds = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
    return sum(x.default is Parameter.empty and x.kind not in kinds for x in parameters) <= 1


def apply_modules(modules: tuple[nn.Module, ...], factor: float | Tensor, x: Tensor) -> Tensor:
    """The modules one after the other. Experts read only batches."""
    y = x[None] if x.ndim == 2 else x
    for module in modules:
        out = module(y)
        y = out if isinstance(out, Tensor) else out[0]
    y = y.reshape(*x.shape[:-1], -1)
    return y if isinstance(factor, float) and factor == 1 else y * factor


def _refuse(error: RheoscopeError, x: Tensor) -> NoReturn:
    raise error
