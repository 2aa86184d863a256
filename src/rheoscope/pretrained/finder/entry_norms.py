"""Blocks that begin with a norm whose result is the stream (MiniMax): post-norm blocks, which end with the next norm."""

from dataclasses import replace

from rheoscope.pretrained.finder.blocks import Block, Layer
from rheoscope.pretrained.finder.stream import SAME_NUMBERS
from rheoscope.pretrained.finder.stream_ends import norm_calls
from rheoscope.pretrained.finder.tape import ModuleCall, Tape


def begin_at_norms(tape: Tape, layers: list[Layer]) -> list[Layer]:
    """The layers from norm to norm, if every block begins with a norm and adds nothing to the points before it.

    Each layer then ends with the norm that reads its output: that of the next block, or the last norm of the network.
    """
    entries = list[ModuleCall]()
    for layer in layers:
        entry = entry_norm(tape, layer.block)
        if entry is None:
            return layers
        entries.append(entry)
    last = next((call for call, _ in norm_calls(tape, layers[-1].output)), None)
    if last is None:
        return layers
    return [_between_norms(*x) for x in zip(layers, entries, [*entries[1:], last], strict=True)]


def _between_norms(layer: Layer, entry: ModuleCall, exit_norm: ModuleCall) -> Layer:
    block = replace(layer.block, points=entry.outputs[0], entry_norm=entry, exit_norm=exit_norm)
    return replace(layer, block=block, output=exit_norm.outputs[0])


def entry_norm(tape: Tape, block: Block) -> ModuleCall | None:
    """The norm that reads the points of a block, if nothing else in the block reads them."""
    norm = next((call for call, _ in norm_calls(tape, block.points)), None)
    if norm is None:
        return None
    is_alone = all(norm.first_operation <= index < norm.last_operation for index in _readers(tape, block))
    return norm if is_alone else None


def _readers(tape: Tape, block: Block) -> list[int]:
    """The operations of a block that read its points, up to layout."""
    readers, pending = list[int](), [block.points]
    for value in pending:
        for index in tape.readers.get(value, ()):
            if not block.call.first_operation <= index < block.call.last_operation:
                continue
            operation = tape.operations[index]
            if operation.name in SAME_NUMBERS:
                pending.extend(operation.results)
            else:
                readers.append(index)
    return readers
