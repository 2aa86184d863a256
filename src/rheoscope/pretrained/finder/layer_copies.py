"""Every layer of a network with its tape, where a stored tape has the graph of each kind of layer once."""

from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.blocks import Layer
from rheoscope.pretrained.finder.stored_tape import bound_to
from rheoscope.pretrained.finder.tape import Tape
from rheoscope.shapes import RheoscopeError

PlacedLayer = tuple[Tape, Layer]
"""A layer of a tape, and the tape with the weights of the layer that is described."""


def every_layer(tape: Tape, *stacks: list[Layer]) -> list[list[PlacedLayer]]:
    """The layers of each stack in order: those on the tape, and those that have the graph of one of them.

    Raises if a layer that has a copy is in no stack.
    """
    if not tape.copies:
        return [[(tape, layer) for layer in stack] for stack in stacks]
    placed = [_with_copies(tape, stack) for stack in stacks]
    if sum(map(len, placed)) != len(tape.copies):
        raise RheoscopeError(
            Message("the tape has {n} layers, expected {m}", n=sum(map(len, placed)), m=len(tape.copies))
        )
    return placed


def _with_copies(tape: Tape, layers: list[Layer]) -> list[PlacedLayer]:
    originals = {layer.block.call.module: layer for layer in layers}
    return [
        (bound_to(tape, original, module), originals[original])
        for module, original in tape.copies
        if original in originals
    ]
