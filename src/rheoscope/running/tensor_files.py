"""Tensors in safetensors files, read when they are needed: whole, as rows, or as bytes."""

import json
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.running.read_buffers import BUFFERS, buffer_bytes, on_copy_stream
from rheoscope.shapes import RheoscopeError

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
"""The dtypes of safetensors files that torch has."""
OWN_PAGES_BYTES = 2**16
"""Tensors on the CPU from this size on get memory pages of their own."""


class TensorFile:
    """An open file. Tensors are read at their offsets, so threads can share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDONLY)
        self.signature = self._current_signature()

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)

    def _current_signature(self) -> tuple[int, int, int]:
        status = os.stat(self.path)
        return status.st_ino, status.st_size, status.st_mtime_ns

    def is_unchanged(self) -> bool:
        """Whether the path still leads to the file that was opened, with the same size and time."""
        try:
            return self._current_signature() == self.signature
        except OSError:
            return False

    def read_into(self, target: Any, offset: int) -> None:
        """Fill a writable buffer with the bytes from `offset` on; raises at the end of the file."""
        buffer = memoryview(target)
        while buffer.nbytes:
            n_read = os.preadv(self.descriptor, [buffer], offset)
            if n_read <= 0:
                raise RheoscopeError(
                    Message("{file} is shorter than its header says; download it again", file=str(self.path))
                )
            buffer, offset = buffer[n_read:], offset + n_read


class Source(ABC):
    """Where the numbers of a stored tensor come from."""

    @abstractmethod
    def value(self) -> Tensor:
        """The numbers, as a plain tensor."""

    @abstractmethod
    def rows(self, index: slice | Tensor) -> Tensor:
        """Some rows: a range, or those with the given indices. Others are not read if `reads_rows`."""

    reads_rows = False
    """Whether `rows` reads nothing else."""

    def on_cpu(self) -> "Source":
        """The same numbers for a single use on the CPU, which keeps nothing."""
        return self


@dataclass(frozen=True, eq=False)
class FileTensor(Source):
    """A tensor in a file, as a tensor of `dtype` on `device`."""

    file: TensorFile
    offset: int
    shape: tuple[int, ...]
    file_dtype: torch.dtype
    dtype: torch.dtype
    device: torch.device
    reads_rows = True

    def on_cpu(self) -> "FileTensor":
        return replace(self, device=torch.device("cpu"))

    def converted(self, dtype: torch.dtype | None, device: torch.device | None) -> "FileTensor | None":
        """The same tensor in another dtype and on another device, or None if it is converted already."""
        is_converted = self.dtype != self.file_dtype and dtype not in (None, self.dtype)
        return None if is_converted else replace(self, dtype=dtype or self.dtype, device=device or self.device)

    def value(self) -> Tensor:
        out = empty_pages(self.shape, self.dtype, self.device)
        self._fill(out.view(-1), 0)
        return out

    def rows(self, index: slice | Int[Tensor, "*n"]) -> Tensor:
        row_shape = self.shape[1:]
        row_numel = torch.Size(row_shape).numel()
        if isinstance(index, slice):
            start, stop, _ = index.indices(self.shape[0])
            out = empty_pages((max(0, stop - start), *row_shape), self.dtype, self.device)
            self._fill(out.view(-1), start * row_numel)
            return out
        indices = index.reshape(-1).cpu()
        unique, inverse = (indices % self.shape[0]).unique(return_inverse=True)
        out = torch.empty(len(unique), *row_shape, dtype=self.dtype)
        for row, source_row in zip(out, unique.tolist(), strict=True):
            replace(self, device=out.device)._fill(row.view(-1), source_row * row_numel)
        return out[inverse].unflatten(0, index.shape).to(self.device) if index.ndim else out[0].to(self.device)

    def _fill(self, out: Tensor, first: int) -> None:
        """Fill a flat tensor with the numbers from number `first` on."""
        itemsize = self.file_dtype.itemsize
        if out.device.type == "cpu" and self.dtype == self.file_dtype:
            self.file.read_into(_writable_bytes(out), self.offset + first * itemsize)
            return
        chunk_numel = buffer_bytes(out.device) // itemsize
        for start in range(0, len(out), chunk_numel):
            part = out[start : start + chunk_numel]
            with BUFFERS.next(out.device) as buffer:
                numbers = buffer[: len(part) * itemsize]
                self.file.read_into(numbers.numpy(), self.offset + (first + start) * itemsize)
                _copy(numbers.view(self.file_dtype), part)
        BUFFERS.finish()


def _copy(numbers: Tensor, part: Tensor) -> None:
    """Copy numbers from a buffer. A GPU converts them itself and does not wait."""
    if part.device.type == "cuda":
        numbers = numbers.to(part.device, non_blocking=True)
    part.copy_(numbers)


def empty_pages(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor without values. On the CPU its memory goes back to the system as soon as nothing refers to it.

    The allocator of C keeps freed memory for later, which would add several blocks to the memory of a streamed model.
    """
    n_bytes = torch.Size(shape).numel() * dtype.itemsize
    if device.type != "cpu" or n_bytes < OWN_PAGES_BYTES:
        with on_copy_stream(device):
            return torch.empty(shape, dtype=dtype, device=device)
    return torch.frombuffer(mmap.mmap(-1, n_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=dtype).view(shape)


def _writable_bytes(x: Tensor) -> Any:
    return x.view(torch.uint8).numpy()


def read_headers(paths: Sequence[Path]) -> dict[str, FileTensor]:
    """Every tensor of some safetensors files by name. Only the headers are read."""
    return {name: tensor for path in paths for name, tensor in _read_header(path).items()}


def _read_header(path: Path) -> dict[str, FileTensor]:
    file = TensorFile(path)
    length = bytearray(8)
    file.read_into(length, 0)
    header = bytearray(int.from_bytes(length, "little"))
    file.read_into(header, 8)
    entries = json.loads(header)
    return {
        name: _file_tensor(file, name, entry, 8 + len(header))
        for name, entry in entries.items()
        if name != "__metadata__"
    }


def _file_tensor(file: TensorFile, name: str, entry: dict[str, Any], data_start: int) -> FileTensor:
    if entry["dtype"] not in DTYPES:
        raise RheoscopeError(
            Message(
                "{file} stores {name} as {dtype}, which torch lacks",
                file=str(file.path),
                name=name,
                dtype=entry["dtype"],
            )
        )
    dtype = DTYPES[entry["dtype"]]
    offset = data_start + entry["data_offsets"][0]
    return FileTensor(file, offset, tuple(entry["shape"]), dtype, dtype, torch.device("cpu"))
