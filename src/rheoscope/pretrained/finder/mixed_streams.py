"""Blocks that mix several streams (Gemma 3n): a point is what the attention of a block reads, and what its attention is added to.

The streams enter a block as one stack. The block mixes them into its points, adds attention, and writes into all streams. So its
second half, from the points after attention to those of the next block, is no function of the points.
"""

from dataclasses import replace

from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.blocks import Block, Layer, is_cloud, stack_ends
from rheoscope.pretrained.finder.head_matrices import module_between
from rheoscope.pretrained.finder.projections import layout_source, same_numbers
from rheoscope.pretrained.finder.stream import BlockStream, HalfLayer
from rheoscope.pretrained.finder.stream_ends import norm_calls
from rheoscope.pretrained.finder.tape import ModuleCall, Operand, Operation, Tape, Value
from rheoscope.running.stream import Tap
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model_parts import Norm
from rheoscope.space.step import EMBED, Step


def mixed_block(tape: Tape, call: ModuleCall, softmax: int) -> Block | None:
    """A block whose attention is added to one tensor that it reads. None if there is none."""
    _, output = stack_ends(tape, call)
    total = _attention_sum(tape, call, softmax)
    if output is None or total is None:
        return None
    points, _ = _summands(tape, total, softmax)
    reader = next(iter(_readers(tape, call, points)), None)
    return None if reader is None else Block(call, points, output, softmax, reader=reader)


def _attention_sum(tape: Tape, call: ModuleCall, softmax: int) -> Operation | None:
    """The first sum of points without attention and points with it."""
    behind = _behind(tape, call, softmax)
    for operation in tape.operations[softmax : call.last_operation]:
        if operation.name == "add" and float(operation.kwargs.get("alpha", 1.0)) == 1.0:
            clouds = [x.value for x in operation.args[:2] if isinstance(x, Operand) and is_cloud(tape, x.value)]
            if len(clouds) == 2 and sum(x in behind for x in clouds) == 1:
                return operation
    return None


def _behind(tape: Tape, call: ModuleCall, softmax: int) -> set[Value]:
    return tape.descendants(set(tape.operations[softmax].results), call.last_operation)


def _summands(tape: Tape, total: Operation, softmax: int) -> tuple[Value, Value]:
    """The points of a sum, and what attention adds to them."""
    behind = tape.descendants(set(tape.operations[softmax].results), tape.producer[total.results[0]])
    first, second = (x.value for x in total.args[:2])
    return (second, first) if first in behind else (first, second)


def _readers(tape: Tape, call: ModuleCall, points: Value) -> list[ModuleCall]:
    """The modules of a block that read its points first, in order."""
    inside = [
        x for x in tape.calls if call.first_operation <= x.first_operation < call.last_operation and x is not call
    ]
    in_order = sorted(inside, key=lambda x: x.first_operation)
    return [x for x in in_order if x.inputs and same_numbers(tape, x.inputs[0], points)]


def mixed_stream(tape: Tape, block: Block) -> BlockStream:
    """The attention of a block that mixes streams. No tensor is what its second half adds."""
    total = _attention_sum(tape, block.call, block.softmax)
    assert total is not None
    points, update = _summands(tape, total, block.softmax)
    result = total.results[0]
    return BlockStream(
        HalfLayer(points, update, 1.0, result, result), HalfLayer(result, None, 1.0, block.output, block.output), False
    )


def end_at_readers(tape: Tape, layers: list[Layer]) -> list[Layer]:
    """Layers that end where the next one reads its points: the last one at the norm that reads one cloud again."""
    if all(layer.block.reader is None for layer in layers):
        return layers
    if any(layer.block.reader is None for layer in layers):
        raise RheoscopeError(Message("some blocks mix several streams and others do not"))
    final = _final_call(tape, layers[-1])
    readers = [*(layer.block.reader for layer in layers[1:]), final]
    ended = [replace(layer, reader=reader) for layer, reader in zip(layers, readers, strict=True)]
    return [*ended[:-1], replace(ended[-1], output=final.inputs[0])]


def _final_call(tape: Tape, last: Layer) -> ModuleCall:
    """The first norm after the last block that reads points of the width of its own."""
    width, end = tape.template(last.block.points).shape[-1], tape.producer[last.output]
    for call in sorted(tape.calls, key=lambda x: x.first_operation):
        points = call.inputs[0] if call.first_operation > end and call.inputs else None
        if points is None or not is_cloud(tape, points) or tape.template(points).shape[-1] != width:
            continue
        if any(x is call for x, _ in norm_calls(tape, points)):
            return call
    raise RheoscopeError(Message("no norm reads one cloud of points after the last layer"))


def without_taps(tape: Tape, block: Block, norm: Norm, result: Value) -> Norm:
    """The norm that attention reads, applied without the hooks that read the points where they enter this norm."""
    module = module_between(tape, block.points, result)
    is_tapped = block.reader is not None and module is block.reader.module
    return replace(norm, apply=module.forward) if is_tapped and module is not None else norm


def n_streams(tape: Tape, block: Block) -> int:
    """The number of streams that a block mixes; 1 for a block that reads one cloud."""
    if block.reader is None:
        return 1
    stack = tape.template(block.output)
    return stack.numel() // (tape.n_tokens * tape.template(block.points).shape[-1])


def mixed_embed_tap(tape: Tape, block: Block) -> Tap:
    """The tap of the points that the first block mixes."""
    assert block.reader is not None
    return Tap(EMBED, block.reader.module, "in", is_shared=_is_shared(tape, block.reader))


def mixed_end_tap(tape: Tape, index: int, reader: ModuleCall) -> Tap:
    """The tap of the points that the next layer mixes, or that the last norm reads."""
    return Tap(Step(index, "resid_post"), reader.module, "in", is_shared=_is_shared(tape, reader))


def _is_shared(tape: Tape, reader: ModuleCall) -> bool:
    """Whether more than one module reads a tensor, up to layout."""
    source = layout_source(tape, reader.inputs[0])
    outside, pending = list[int](), [source]
    for value in pending:
        for index in tape.readers.get(value, ()):
            if reader.first_operation <= index < reader.last_operation:
                continue
            results = tape.operations[index].results
            if results and layout_source(tape, results[0]) == source:
                pending.extend(results)
            else:
                outside.append(index)
    return bool(outside)
