"""The blocks of a network on a tape: members of a list of modules, each with one softmax, and blocks of another kind between them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.chains import LAYOUT_OPERATIONS, MATRIX_PRODUCTS
from rheoscope.pretrained.finder.projections import same_numbers
from rheoscope.pretrained.finder.softmax_calls import softmax_indices
from rheoscope.pretrained.finder.tape import ModuleCall, Operation, Tape, Value
from rheoscope.shapes import RheoscopeError


@dataclass(frozen=True, eq=False)
class Block:
    """The call of one block with attention: its input and output points, and the indices of its softmaxes.

    `entry_norm` is a norm at its beginning whose result is `points`, and `exit_norm` the norm that reads its output (MiniMax).
    `reader` is the module that reads `points` if the block mixes them from several streams, whose stack is `output` (Gemma 3n).
    """

    call: ModuleCall
    points: Value
    output: Value
    softmax: int
    cross_softmax: int | None = None
    entry_norm: ModuleCall | None = None
    exit_norm: ModuleCall | None = None
    reader: ModuleCall | None = None


@dataclass(frozen=True, eq=False)
class Layer:
    """A block with attention, and the blocks without a softmax that follow it: they count as part of its second half.

    `reader` is the module that reads the points after a layer of several streams.
    """

    block: Block
    opaque_calls: tuple[ModuleCall, ...]
    opaque_names: tuple[str, ...]
    output: Value
    turn: int = 0
    n_turns: int = 1
    reader: ModuleCall | None = None

    @property
    def last_module(self) -> nn.Module:
        return self.opaque_calls[-1].module if self.opaque_calls else self.block.call.module


def is_cloud(tape: Tape, value: Value) -> bool:
    """Whether a tensor has one vector per token, and nothing else."""
    x = tape.template(value)
    return (
        x.is_floating_point()
        and x.ndim in (2, 3)
        and x.shape[-2] == tape.n_tokens
        and x.numel() == x.shape[-1] * tape.n_tokens
    )


OtherBlock = Callable[[Tape, ModuleCall, int], Block | None]
"""The block of a call and its softmax that reads no single cloud; None if there is none."""


def no_other_block(tape: Tape, call: ModuleCall, softmax: int) -> None:
    return None


def find_blocks(
    tape: Tape,
    network: nn.Module,
    softmaxes: list[int],
    cross_softmaxes: list[int] | None = None,
    other_block: OtherBlock = no_other_block,
) -> list[Block]:
    """The block of every softmax: the largest member of a list of modules that contains this softmax and no other.

    A block may contain one more of `cross_softmaxes`.
    """
    if not softmaxes:
        raise _no_attention(tape, network)
    members = {module for parent in network.modules() if isinstance(parent, nn.ModuleList) for module in parent}
    blocks = [_block(tape, _block_call(tape, members, index, softmaxes), index, other_block) for index in softmaxes]
    return [_with_cross(block, cross_softmaxes or []) for block in blocks]


def _no_attention(tape: Tape, network: nn.Module) -> RheoscopeError:
    """Why no tokens attend to all tokens: there is no softmax, or one over parts of a text (LED) or over two clouds (T5Gemma 2)."""
    shapes = [tuple(tape.template(tape.operations[i].results[0]).shape[-2:]) for i in softmax_indices(tape)]
    if not shapes:
        return RheoscopeError(
            Message("{network} has no softmax over tokens, so it has no attention", network=type(network).__name__)
        )
    shape = next((x for x in shapes if x[0] == tape.n_tokens), shapes[0])
    return RheoscopeError(
        Message(
            "{network} has a softmax over {m} × {k} tokens, expected one over {n} × {n}",
            network=type(network).__name__,
            m=shape[0],
            k=shape[1],
            n=tape.n_tokens,
        )
    )


def _with_cross(block: Block, cross_softmaxes: list[int]) -> Block:
    inside = [i for i in cross_softmaxes if block.call.first_operation <= i < block.call.last_operation]
    if len(inside) > 1:
        raise RheoscopeError(Message("{module} reads several other clouds", module=type(block.call.module).__name__))
    return replace(block, cross_softmax=inside[0]) if inside else block


def _block_call(tape: Tape, members: set[nn.Module], softmax: int, softmaxes: list[int]) -> ModuleCall:
    around = [x for x in tape.calls if x.module in members and x.first_operation <= softmax < x.last_operation]
    single = [x for x in around if sum(x.first_operation <= i < x.last_operation for i in softmaxes) == 1]
    if not around:
        module = type(tape.operations[softmax].module).__name__
        raise RheoscopeError(Message("a softmax of {module} is in no list of blocks", module=module))
    if not single:
        smallest = min(around, key=lambda x: x.last_operation - x.first_operation)
        n = sum(smallest.first_operation <= i < smallest.last_operation for i in softmaxes)
        raise RheoscopeError(
            Message("{module} has {n} softmaxes, expected 1", module=type(smallest.module).__name__, n=n)
        )
    return max(single, key=lambda x: x.last_operation - x.first_operation)


def _block(tape: Tape, call: ModuleCall, softmax: int, other_block: OtherBlock) -> Block:
    points, output = _clouds(tape, call)
    if points is None or output is None or tape.template(points).shape[-1] != tape.template(output).shape[-1]:
        block = other_block(tape, call, softmax)
        if block is None:
            raise _no_cloud(tape, call)
        return block
    return Block(call, points, output, softmax)


def _no_cloud(tape: Tape, call: ModuleCall) -> RheoscopeError:
    """What a block reads in place of one cloud: several clouds, or a text of another length."""
    module, n = type(call.module).__name__, tape.n_tokens
    tensors = {
        v: tape.template(v) for v in call.inputs if tape.template(v).is_floating_point() and tape.template(v).ndim > 2
    }
    for value, x in tensors.items():
        n_clouds = x.numel() // (n * x.shape[-1])
        if n in x.shape[:-1] and n_clouds > 1:
            mixer = _first_product(tape, value, call)
            return RheoscopeError(
                Message(
                    "{module}: {operation} of {mixer} mixes {n} clouds of points, expected 1 cloud",
                    module=module,
                    n=n_clouds,
                    operation=mixer.name,
                    mixer=type(mixer.module).__name__,
                )
            )
    return RheoscopeError(
        Message(
            "{module} reads points of shape {shape}, expected {n} rows, 1 for each token",
            module=module,
            shape=str(next((tuple(x.shape) for x in tensors.values()), ())),
            n=n,
        )
    )


def _first_product(tape: Tape, value: Value, call: ModuleCall) -> Operation:
    """The first matrix product of a tensor in a call, before anything but its layout changes; else the first of what it becomes."""
    operations = tape.operations[call.first_operation : call.last_operation]
    for names in (LAYOUT_OPERATIONS, None):
        reached = {value}
        for operation in operations:
            if reached.isdisjoint(operation.operands):
                continue
            if operation.name in MATRIX_PRODUCTS:
                return operation
            if names is None or operation.name in names:
                reached.update(operation.results)
    return operations[0]


def _clouds(tape: Tape, call: ModuleCall) -> tuple[Value | None, Value | None]:
    """The first cloud that a call reads and the first that it returns."""
    return next((v for v in call.inputs if is_cloud(tape, v)), None), next(
        (v for v in call.outputs if is_cloud(tape, v)), None
    )


def stack_ends(tape: Tape, call: ModuleCall) -> tuple[Value | None, Value | None]:
    """The first stack of clouds that a call reads, and the first of the same shape that it returns."""
    points = next((v for v in call.inputs if is_stack(tape, v)), None)
    shape = None if points is None else tape.template(points).shape
    return points, next((v for v in call.outputs if tape.template(v).shape == shape), None)


def is_stack(tape: Tape, value: Value) -> bool:
    """Whether a tensor has several vectors per token, each in a cloud of its own."""
    x = tape.template(value)
    return x.is_floating_point() and x.ndim == 4 and x.shape[-2] == tape.n_tokens and not is_cloud(tape, value)


def group_layers(tape: Tape, network: nn.Module, blocks: list[Block]) -> list[Layer]:
    """Every block with attention, with the blocks of another kind that follow it in the same list."""
    modules = [block.call.module for block in blocks]
    lists = [x for x in network.modules() if isinstance(x, nn.ModuleList) and modules[0] in list(x)]
    if not any(set(modules) <= set(parent) for parent in lists):
        raise RheoscopeError(Message("the blocks with attention are in several lists, so they move several clouds"))
    names = {module: name for name, module in network.named_modules()}
    by_call = {id(block.call): block for block in blocks}
    turns: dict[nn.Module, int] = {}
    calls = [x for x in tape.calls if any(x.module in set(parent) for parent in lists)]
    layers: list[Layer] = []
    leading: list[str] = []
    for call in sorted(calls, key=lambda x: x.first_operation):
        points, output = (_clouds if blocks[0].reader is None else stack_ends)(tape, call)
        if layers and (points is None or not same_numbers(tape, points, layers[-1].output)):
            raise RheoscopeError(Message("something changes the points before {module}", module=names[call.module]))
        if id(call) in by_call:
            block, turn = by_call[id(call)], turns.get(call.module, 0)
            layers.append(Layer(block, (), tuple(leading), block.output, turn, modules.count(call.module)))
            turns[call.module], leading = turn + 1, []
        elif not layers:
            leading.append(names[call.module])
        else:
            assert output is not None
            last = layers.pop()
            opaque = (*last.opaque_calls, call), (*last.opaque_names, names[call.module])
            layers.append(replace(last, opaque_calls=opaque[0], opaque_names=opaque[1], output=output))
    return layers
