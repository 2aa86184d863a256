"""The weights of a network that is larger than the memory: one block is in memory, and the next one is read ahead.

A block is a layer of the network (an item of one of its outermost module lists). All weights of other modules are tables, such
as the embedding. Weights are read by the operations that use them (`StoredTensor`). The first use of another block drops the
one before and starts to read the one after, so a forward pass, a backward pass and a loop over layers all read each block once.
"""

import os
import re
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.running.block_turns import BlockTurns
from rheoscope.running.network_walk import parameters_of
from rheoscope.running.stored_tensor import StoredTensor
from rheoscope.running.tensor_files import Source, TensorFile
from rheoscope.shapes import RheoscopeError

READERS = max(4, min(8, os.cpu_count() or 4))
"""The number of threads that read. One thread does not reach the speed of a fast disk."""
BLOCKS_IN_MEMORY = 2
"""The block in use, and the one that is read ahead or that was in use before."""
ATTENTION_NAME = re.compile("attn|attention", re.IGNORECASE)
"""A part of the names of attention modules in all families."""
SMALL_BYTES = 2**20
"""Tables of up to this many bytes together, such as the final norm, stay in memory."""


@dataclass(frozen=True, eq=False)
class Weight(Source):
    """One weight of a streamed network: its block (None for a table), its place in the block, and where it is read from."""

    weights: "StreamedWeights"
    name: str
    block: int | None
    place: str
    n_bytes: int
    source: Source

    def on_cpu(self) -> Source:
        return self.source.on_cpu()

    def value(self) -> Tensor:
        return self.weights.value(self)

    def rows(self, index: slice | Tensor) -> Tensor:
        if self.source.reads_rows and not self.weights.is_live(self):
            return self.source.rows(index)
        return self.value()[index]


@dataclass(eq=False)
class StreamedWeights:
    """All weights of a streamed network, and those that are in memory.

    `current` is the block in use and `previous` the one before it. `used_places` are the places in the current block whose
    weights were used, and `unused_places` those that were not used in the last block that has them. The latter are not read
    ahead, so that a loop over the attention of all layers reads no MLP. `turns` is the group of threads that share a pass, if any.
    """

    files: tuple[TensorFile, ...]
    blocks: list[list[Weight]] = field(default_factory=list)
    tables: list[Weight] = field(default_factory=list)
    current: int | None = None
    previous: int | None = None
    used_places: set[str] = field(default_factory=set)
    unused_places: set[str] = field(default_factory=set)
    turns: BlockTurns | None = None
    _live_blocks: dict[int, dict[Weight, Future[Tensor]]] = field(default_factory=dict)
    _live_tables: dict[Weight, Future[Tensor]] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.Lock)

    def __repr__(self) -> str:
        return f"<StreamedWeights: {len(self.blocks)} blocks, {self.n_bytes / 2**30:.1f} GiB>"

    def __deepcopy__(self, memo: Any) -> "StreamedWeights":
        return self  # copies of a network read the same files

    @property
    def n_bytes(self) -> int:
        """The bytes of all weights in memory, if they were there."""
        return sum(weight.n_bytes for weights in (*self.blocks, self.tables) for weight in weights)

    @property
    def block_bytes(self) -> list[int]:
        """The bytes of each block."""
        return [sum(weight.n_bytes for weight in block) for block in self.blocks]

    @property
    def live_weights(self) -> list[Weight]:
        """The weights that are in memory or being read."""
        return [weight for live in (*self._live_blocks.values(), self._live_tables) for weight in live]

    def value(self, weight: Weight) -> Tensor:
        """The numbers of a weight, from memory or from its file."""
        if self.turns is not None and weight.block is not None and not self._is_in_use(weight):
            self.turns.wait_for(weight.block)
        numbers = None
        while numbers is None:
            with self._lock:
                future, is_new = self._future(weight)
            if is_new:
                _read_into(future, weight)
            with suppress(CancelledError):  # another thread has dropped the block before it was read
                numbers = future.result()
        if numbers.is_cuda:  # it was allocated for the stream of a reader
            numbers.record_stream(torch.cuda.current_stream(numbers.device))
        return numbers

    def is_live(self, weight: Weight) -> bool:
        """Whether a weight is in memory or being read."""
        with self._lock:
            return weight in (self._live_tables if weight.block is None else self._live_blocks.get(weight.block, {}))

    @contextmanager
    def taking_turns(self) -> Iterator[BlockTurns]:
        """Inside, threads that take part in the yielded group read each block once for all of them."""
        self.turns = turns = BlockTurns()
        try:
            yield turns
        finally:
            self.turns = None
            turns.close()

    def _is_in_use(self, weight: Weight) -> bool:
        """Whether a weight is in memory and in the block in use or the one before."""
        return weight.block in (self.current, self.previous) and self.is_live(weight)

    def drop_all(self) -> None:
        """Free the memory of all weights. They are read again when they are used."""
        with self._lock:
            self._live_blocks.clear()
            self._live_tables.clear()
            self.current = self.previous = None

    def check_files(self, reads_device: bool = True) -> None:
        """Raise if a file has changed since the network was opened."""
        for file in self.files:
            if not file.is_unchanged():
                raise RheoscopeError(
                    Message("{file} has changed since this model was loaded; load it again", file=str(file.path)),
                    use(stream=True),
                )

    def _future(self, weight: Weight) -> tuple[Future[Tensor], bool]:
        """The future of a weight, and whether the caller has to read it."""
        if weight.block is None:
            live = self._live_tables
        else:
            if weight.block != self.current:
                self._enter(weight.block)
            self.used_places.add(weight.place)
            live = self._live_blocks[weight.block]
        if weight in live:
            return live[weight], False
        live[weight] = Future()
        if weight.block is None:
            self._make_room(weight)
        return live[weight], True

    def _enter(self, block: int) -> None:
        """Make a block the current one: drop others, and read ahead.

        A return to the block before means that both are in use. Then both stay, and nothing is read ahead.
        """
        last, is_return = self.current, block == self.previous
        if last is not None:
            self.unused_places |= {weight.place for weight in self.blocks[last]}
            self.unused_places -= self.used_places
        for index in self._live_blocks.keys() - ({block, last} if is_return else {block}):
            self._drop_block(index)
        self.previous, self.current, self.used_places = last, block, set()
        step = block - last if last is not None and abs(block - last) == 1 else 1
        self._start_reading(block)
        if not is_return and 0 <= block + step < len(self.blocks):
            self._start_reading(block + step)

    def _start_reading(self, block: int) -> None:
        live, new = self._live_blocks.setdefault(block, {}), deque[Weight]()
        for weight in sorted(self.blocks[block], key=lambda weight: weight.n_bytes):  # norms first, which run first
            if weight not in live and weight.place not in self.unused_places:
                live[weight] = Future()
                new.append(weight)
        for _ in range(min(READERS, len(new))):
            threading.Thread(target=_read_all, args=(new, dict(live)), name="rheoscope-reader", daemon=True).start()

    def _drop_block(self, block: int) -> None:
        for future in self._live_blocks.pop(block).values():
            future.cancel()  # if it has not been read yet

    def _make_room(self, newest: Weight) -> None:
        """Drop the tables that were read first, until the rest is no larger than the largest one. Drop the blocks for a large one."""
        if self.blocks and newest.n_bytes > max(self.block_bytes):
            for block in list(self._live_blocks):
                self._drop_block(block)
            self.current = self.previous = None
        limit = max(weight.n_bytes for weight in self.tables) + SMALL_BYTES
        for weight in list(self._live_tables):
            if sum(live.n_bytes for live in self._live_tables) > limit and weight is not newest:
                del self._live_tables[weight]


def _read_all(weights: deque[Weight], futures: dict[Weight, Future[Tensor]]) -> None:
    """Read weights until none is left. Several threads share them, and end with them."""
    with suppress(IndexError):
        while True:
            weight = weights.popleft()
            _read_into(futures[weight], weight)


def _read_into(future: Future[Tensor], weight: Weight) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        with torch.no_grad():
            future.set_result(weight.source.value())
    except BaseException as error:
        future.set_exception(error)


def resident_bytes(name: str, numel: int, dtype: torch.dtype) -> int:
    """The bytes of a weight in memory, by its name and size.

    The View has float32 copies of half-precision embeddings and matrices of heads. It uses the modules of MLPs as they are.

    >>> resident_bytes("layers.0.mlp.fc.weight", 10, torch.float16), resident_bytes("layers.0.attn.q.weight", 10, torch.float16)
    (20, 60)
    """
    is_copied = dtype.itemsize < 4 and (ATTENTION_NAME.search(name) or not re.search(r"\.\d+\.", name))
    return numel * (dtype.itemsize + (4 if is_copied else 0))


def block_names(network: nn.Module) -> list[str]:
    """The names of the layers: the items of the outermost module lists.

    >>> block_names(nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)])}))
    ['layers.0', 'layers.1']
    """
    lists = {name: len(module) for name, module in network.named_modules() if isinstance(module, nn.ModuleList)}
    outermost = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    return [f"{name}.{index}" for name in outermost for index in range(lists[name])]


def weights_of(network: nn.Module) -> StreamedWeights | None:
    """The weights of a streamed network; None for a network in memory.

    >>> weights_of(nn.Linear(1, 1)) is None
    True
    """
    sources = (parameter.source for parameter in parameters_of(network) if isinstance(parameter, StoredTensor))
    return next((source.weights for source in sources if isinstance(source, Weight)), None)


def stream_parameters(network: nn.Module, device: torch.device, files: Iterable[TensorFile]) -> StreamedWeights:
    """Let every stored parameter of a network be read by blocks, on a device. Tied parameters stay tied."""
    weights, names, streamed = StreamedWeights(tuple(files)), block_names(network), dict[int, nn.Parameter]()
    weights.blocks = [[] for _ in names]
    prefixes = {f"{name}.": block for block, name in enumerate(names)}
    for name, parameter in network.named_parameters():
        if not isinstance(parameter, StoredTensor):
            continue
        block = next((prefixes[prefix] for prefix in prefixes if name.startswith(prefix)), None)
        place = name if block is None else name.removeprefix(f"{names[block]}.")
        on_device: Any = parameter.detach().to(device)
        weight = Weight(weights, name, block, place, on_device.nbytes, on_device.source)
        (weights.tables if block is None else weights.blocks[block]).append(weight)
        streamed[id(parameter)] = nn.Parameter(
            StoredTensor(weight, _layout(on_device), device), requires_grad=parameter.requires_grad
        )
    for module in network.modules():
        for name, unread in module._parameters.items():
            if id(unread) in streamed:
                module._parameters[name] = streamed[id(unread)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = (buffer.source.value() if isinstance(buffer, StoredTensor) else buffer).to(
                    device
                )
    return weights


def _layout(x: Tensor) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
