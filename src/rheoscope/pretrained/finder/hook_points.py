"""Where the points of a layer can be read and changed while the network runs: modules whose tensors are the points."""

from dataclasses import replace

from torch import Tensor, nn

from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.blocks import Block, Layer
from rheoscope.pretrained.finder.mixed_streams import mixed_embed_tap, mixed_end_tap
from rheoscope.pretrained.finder.projections import same_numbers
from rheoscope.pretrained.finder.stream import BlockStream, HalfLayer, StreamReader, without_layer_scale
from rheoscope.pretrained.finder.tape import ModuleCall, Tape
from rheoscope.running.stream import Tap
from rheoscope.shapes import RheoscopeError
from rheoscope.space.step import EMBED, Step


def embed_tap(tape: Tape, layer: Layer) -> Tap:
    """The tap of the first points: what the first block reads, or the result of the norm at its beginning."""
    if layer.block.reader is not None:
        return mixed_embed_tap(tape, layer.block)
    norm = layer.block.entry_norm
    module, side = (layer.block.call.module, "in") if norm is None else (norm.module, "out")
    return Tap(EMBED, module, side, n_turns=layer.n_turns)  # type: ignore[arg-type]


def layer_taps(tape: Tape, index: int, layer: Layer, stream: BlockStream) -> tuple[Tap, ...]:
    """The taps of a layer in the order of the stream, at the turn of its block."""
    taps = tape.share(("taps", layer.block.softmax), lambda: _taps(tape, index, layer, stream))
    return tuple(
        replace(
            tap,
            step=Step(index, tap.step.kind),
            module=tape.own(tap.module),
            writer=None if tap.writer is None else tape.own(tap.writer),
            turn=layer.turn,
            n_turns=layer.n_turns,
        )
        for tap in taps
    )


def _taps(tape: Tape, index: int, layer: Layer, stream: BlockStream) -> tuple[Tap, ...]:
    exit_norm = layer.block.exit_norm
    if layer.reader is not None:
        writer, _ = _writer(tape, StreamReader(tape, layer.block).calls, stream.attention)
        middle = Tap(Step(index, "resid_mid"), writer, "out", is_displacement=True, writer=writer)
        return middle, mixed_end_tap(tape, index, layer.reader)
    post = Tap(Step(index, "resid_post"), layer.last_module if exit_norm is None else exit_norm.module, "out")
    halves = [(stream.attention, "attn_sum", "resid_mid")]
    halves += [] if stream.cross is None else [(stream.cross, "cross_sum", "resid_cross")]
    if stream.mlp.norm is not None:
        norms = [tap for half, *names in halves for tap in _post_norm_taps(index, half, *names)]
        scale = 1.0 if layer.opaque_calls else stream.mlp.scale
        return (*norms, Tap(Step(index, "mlp_sum"), stream.mlp.norm.module, "in", scale=scale), post)
    calls = StreamReader(tape, layer.block).calls
    if stream.is_parallel:
        return _displacement_tap(tape, index, calls, stream.attention), post
    return (*(_sum_tap(tape, Step(index, name), calls, half) for half, _, name in halves), post)


def _post_norm_taps(index: int, half: HalfLayer, sum_name: str, result_name: str) -> tuple[Tap, Tap]:
    assert half.norm is not None
    module = half.norm.module
    return Tap(Step(index, sum_name), module, "in", scale=half.scale), Tap(Step(index, result_name), module, "out")


def _displacement_tap(tape: Tape, index: int, calls: list[ModuleCall], half: HalfLayer) -> Tap:
    writer, factor = _writer(tape, calls, half)
    if isinstance(factor, Tensor) or factor != 1:
        raise RheoscopeError(Message("no module returns what attention adds to the stream"))
    return Tap(Step(index, "resid_mid"), writer, "out", is_displacement=True)


def _sum_tap(tape: Tape, step: Step, calls: list[ModuleCall], half: HalfLayer) -> Tap:
    """The first module that reads a sum, and the module that returns what was added."""
    in_order = sorted(calls, key=lambda call: call.first_operation)
    reader = next((x for x in in_order if x.inputs and same_numbers(tape, x.inputs[0], half.result)), None)
    if reader is None:
        raise RheoscopeError(Message("no module reads the points after attention"))
    writer, factor = _writer(tape, calls, half)
    return Tap(step, reader.module, "in", writer=writer, writer_scale=factor)


def _writer(tape: Tape, calls: list[ModuleCall], half: HalfLayer) -> tuple[nn.Module, float | Tensor]:
    """The module that returns what attention adds to the stream, up to a factor."""
    assert half.update is not None
    for update, factor in ((half.update, half.factor), without_layer_scale(tape, half.update, half.factor)):
        writer = next((x for x in calls if x.outputs and same_numbers(tape, x.outputs[0], update)), None)
        if writer is not None:
            return writer.module, factor
    raise RheoscopeError(Message("no module returns what attention adds to the stream"))


def attention_module(tape: Tape, block: Block) -> nn.Module:
    """The module in which the softmax of a block runs."""
    module = tape.operations[block.softmax].module
    assert module is not None
    return tape.own(module)
