"""Tensors whose numbers stay in files: an operation reads what it needs, and nothing is kept.

A `StoredTensor` has the shape, dtype and device of a weight, but no memory. Views, conversions and (under `deferring`) all other
operations give StoredTensors too, which repeat the operation whenever their numbers are needed. Any other operation reads the
numbers and computes on plain tensors, so its results are those of the plain weight, bit for bit.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.running.tensor_files import FileTensor, Source
from rheoscope.shapes import RheoscopeError

aten = torch.ops.aten
IDENTITIES = {aten.alias.default, aten.detach.default}
"""Views of the whole tensor."""
DEFERRED = {aten._to_copy.default, aten.constant_pad_nd.default}
"""Operations that are deferred like views, because their results are as large as a weight."""
_is_deferring: ContextVar[bool] = ContextVar("all operations on stored tensors are deferred", default=False)


class StoredTensor(Tensor):
    """A tensor whose numbers are read from `source` by every operation that needs them."""

    source: Source

    @staticmethod
    def __new__(cls, source: Source, meta: Tensor, device: torch.device) -> "StoredTensor":
        """`meta` has the shape, the strides and the dtype."""
        stored: StoredTensor = Tensor._make_wrapper_subclass(
            cls,
            meta.shape,
            strides=meta.stride(),
            storage_offset=meta.storage_offset(),
            dtype=meta.dtype,
            device=device,
        )
        stored.source = source
        return stored

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __repr__(self) -> str:  # type: ignore[override]
        return f"<StoredTensor {tuple(self.shape)} {self.dtype} on {self.device}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> "StoredTensor":
        """A tensor with the same source, since nothing changes files."""
        copied = StoredTensor(self.source, _meta(self), self.device)
        memo[id(self)] = copied = (
            nn.Parameter(copied, self.requires_grad) if isinstance(self, nn.Parameter) else copied  # type: ignore[assignment]
        )
        return copied

    def data_ptr(self) -> int:
        """A number that identifies the stored numbers, as an address does: equal for views that start at the same one."""
        return hash((id(root_of(self.source)), int(self.storage_offset())))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if operation._schema.is_mutable and any(isinstance(x, StoredTensor) for x in _written(operation, args, kwargs)):
            raise RheoscopeError(
                Message("the weights of a streamed model are read from its files and cannot be changed"),
                use(stream=False),
            )
        if operation.is_view or operation in DEFERRED or (_is_deferring.get() and _reads_only_stored(args, kwargs)):
            return _defer(operation, args, kwargs)
        if operation in ROW_OPERATIONS and (rows := ROW_OPERATIONS[operation](*args, **kwargs)) is not None:
            return rows
        return operation(*tree_map(plain, args), **tree_map(plain, kwargs))


def _written(operation: Any, args: tuple, kwargs: dict) -> Iterator[Any]:
    """The arguments that an operation writes to."""
    for position, argument in enumerate(operation._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield args[position] if position < len(args) else kwargs.get(argument.name)


def _reads_only_stored(args: tuple, kwargs: dict) -> bool:
    """Whether no argument is a plain tensor, so that the result depends on weights alone."""
    return all(isinstance(x, StoredTensor) for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor))


def stored_tensor(tensor: FileTensor) -> StoredTensor:
    """A tensor of a file."""
    return StoredTensor(tensor, torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"), tensor.device)


def sent_when_used(x: Tensor, device: torch.device) -> Tensor:
    """A tensor of another device: each operation that needs it copies it, and the copy is not kept."""
    return StoredTensor(RemoteTensor(x.detach(), device), _meta(x), device)


@dataclass(frozen=True, eq=False)
class RemoteTensor(Source):
    """A tensor in the memory of another device."""

    x: Tensor
    device: torch.device

    def value(self) -> Tensor:
        return self.x.to(self.device)

    def rows(self, index: slice | Tensor) -> Tensor:
        return self.x[index if isinstance(index, slice) else index.to(self.x.device)].to(self.device)


def plain(x: Any) -> Any:
    """The numbers of a StoredTensor as a plain tensor; anything else as it is."""
    return x.source.value() if isinstance(x, StoredTensor) else x


def root_of(source: Source) -> Source:
    """The source that views and conversions begin with."""
    return root_of(source.parent.source) if isinstance(source, Deferred) and source.parent is not None else source


@contextmanager
def deferring() -> Iterator[None]:
    """Inside, operations on StoredTensors alone give StoredTensors and read nothing."""
    token = _is_deferring.set(True)
    try:
        yield
    finally:
        _is_deferring.reset(token)


@dataclass(frozen=True, eq=False)
class Deferred(Source):
    """One output of an operation, which is repeated whenever its numbers are needed.

    `parent` is the argument whose numbers the output has (after a view or a conversion), else None.
    """

    operation: Any
    args: tuple
    kwargs: dict[str, Any]
    output_index: int
    parent: StoredTensor | None

    def value(self) -> Tensor:
        if self.operation is aten.slice.Tensor and (rows := self._row_range()) is not None:
            return rows
        outputs = self.operation(*tree_map(plain, self.args), **tree_map(plain, self.kwargs))
        return tree_flatten(outputs)[0][self.output_index]

    def _row_range(self) -> Tensor | None:
        """The result of a slice of rows, or None for a slice along another dimension."""
        x, *options = self.args
        dim, start, stop, step = options + [0, None, None, 1][len(options) :]
        return x.source.rows(slice(start, stop)) if dim == 0 and step == 1 else None

    def rows(self, index: slice | Tensor) -> Tensor:
        if self.operation is aten._to_copy.default:
            return self.operation(self.args[0].source.rows(index), **self.kwargs)
        return self.value()[index]


def _defer(operation: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The outputs of an operation as StoredTensors. Shapes come from the operation on the meta device."""
    first = next(x for x in tree_flatten((args, kwargs))[0] if isinstance(x, StoredTensor))
    if operation in IDENTITIES:
        return StoredTensor(first.source, _meta(first), first.device)
    if torch.Tag.data_dependent_output in operation.tags or torch.Tag.dynamic_output_shape in operation.tags:
        return operation(*tree_map(plain, args), **tree_map(plain, kwargs))
    device = torch.device(kwargs.get("device") or first.device)
    meta_kwargs = tree_map(_meta, kwargs) | ({"device": "meta"} if "device" in kwargs else {})
    outputs, structure = tree_flatten(operation(*tree_map(_meta, args), **meta_kwargs))
    if operation is aten._to_copy.default and (source := _converted(first, outputs[0].dtype, device)) is not None:
        return StoredTensor(source, outputs[0], device)
    parent = first if operation.is_view or operation in DEFERRED else None
    sources = (Deferred(operation, args, kwargs, index, parent) for index in range(len(outputs)))
    return tree_unflatten(
        [StoredTensor(source, x, device) for source, x in zip(sources, outputs, strict=True)], structure
    )


def _converted(x: StoredTensor, dtype: torch.dtype, device: torch.device) -> Source | None:
    """A conversion without an operation: the file is read in another dtype, or a wider copy is undone. Else None."""
    source = x.source
    if isinstance(source, FileTensor):
        return source.converted(dtype, device)
    if isinstance(source, Deferred) and source.operation is aten._to_copy.default:
        original = source.args[0]
        is_wider = torch.promote_types(original.dtype, x.dtype) == x.dtype
        if is_wider and (original.dtype, original.device) == (dtype, device):
            return original.source
    return None


def _meta(x: Any) -> Any:
    """A tensor without numbers, for the shapes of results."""
    if not isinstance(x, Tensor):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def _embedding_rows(weight: Any, indices: Any, *options: Any, **named_options: Any) -> Tensor | None:
    return weight.source.rows(indices) if isinstance(weight, StoredTensor) else None


def _indexed_rows(x: Any, indices: Any) -> Tensor | None:
    is_row_index = len(indices) == 1 and isinstance(indices[0], Tensor) and indices[0].dtype is torch.long
    return x.source.rows(indices[0]) if isinstance(x, StoredTensor) and is_row_index else None


ROW_OPERATIONS: dict[Any, Callable[..., Tensor | None]] = {
    aten.embedding.default: _embedding_rows,
    aten.index.Tensor: _indexed_rows,
}
"""Operations that need only some rows of a table, with a function that reads them, or returns None if it cannot."""
