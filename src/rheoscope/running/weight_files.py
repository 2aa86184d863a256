"""Weights of any network: checks, hashes, truncated files, devices and dtypes."""

import hashlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int8
from torch import Tensor

from rheoscope.attention.memory import check_free_memory
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.running.loading_stages import Progress
from rheoscope.running.network_walk import parameters_of
from rheoscope.running.stored_tensor import StoredTensor
from rheoscope.running.tensor_files import Source
from rheoscope.shapes import RheoscopeError

HASH_BLOCK_BYTES = 2**22
"""Weights are read from files in blocks of this many bytes."""
CACHED_BLOCK_BYTES = 2**19
"""Weights in memory are read in blocks that stay in the processor's cache while they are hashed and summed."""
LARGEST_PLAIN_BYTES = 2**16
"""Larger weights are compressed before they are hashed: SHA-256 reads .3 to 1.3 GB/s, the product that compresses 6 GB/s."""
HASH_ROW_BYTES, HASH_COLUMNS = 2**12, 16
"""The bytes that are compressed together, and the number of integers that stand for them."""


def check_weights(network: Any) -> None:
    """Raise if a weight holds NaN or infinity."""
    probe_bfloat16_matmul()
    if all(map(_is_finite, _tensors_in_memory(parameters_of(network)))):
        return
    for name, parameter in network.named_parameters():
        for x in _tensors_in_memory([parameter]):
            _check_finite(name, x)


def _tensors_in_memory(parameters: Iterable[Tensor]) -> Iterator[Tensor]:
    """The plain tensors of parameters. Those in files are left to `fingerprint`, because it reads them too."""
    plain = (x for parameter in parameters for x in plain_tensors(parameter))
    return (x for x in plain if not isinstance(x, StoredTensor))


def _check_finite(name: str, x: Tensor) -> None:
    if not _is_finite(x):
        raise RheoscopeError(
            Message("the weight {name} holds NaN or infinity; download the checkpoint again", name=name)
        )


def _is_finite(x: Tensor) -> bool:
    return not x.is_floating_point() or bool(x.sum().isfinite()) or bool(x.isfinite().all())


def plain_tensors(x: Tensor) -> list[Tensor]:
    """The tensors that hold the numbers of a tensor: those inside a tensor subclass, as of torchao, or the tensor itself.

    >>> x = torch.ones(2)
    >>> plain_tensors(x) == [x]
    True
    """
    if not hasattr(x, "__tensor_flatten__"):
        return [x]
    return [inner for name in x.__tensor_flatten__()[0] for inner in plain_tensors(getattr(x, name))]


@cache
def probe_bfloat16_matmul() -> None:
    """Let torch check once, without warnings, whether this CPU multiplies bfloat16.

    On other CPUs the first product prints a page of addresses and disables a library for the whole process, also for float32:
    numbers computed before and after would differ in their last bits.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "mkldnn_matmul failed")
        torch.nn.functional.linear(*torch.ones(2, 64, 64, dtype=torch.bfloat16))


def checked_fingerprint(network: Any, config: str = "", progress: Progress | None = None) -> str:
    """The fingerprint of weights that must be finite, as `check_weights` and `fingerprint` in one pass over the memory of the CPU."""
    if any(x.device.type != "cpu" for x in parameters_of(network)):
        check_weights(network)
        return fingerprint(network, config, progress)
    probe_bfloat16_matmul()
    sums = list[float]()
    result = _fingerprint(network, config, progress, lambda x: sums.append(x.sum().item()))
    if not all(map(math.isfinite, sums)):
        check_weights(network)
    return result


def fingerprint(network: Any, config: str = "", progress: Progress | None = None) -> str:
    """A hash (16 hex digits) of the config and of all weights: equal hashes mean equal models.

    SHA-256 of names, shapes, dtypes and bytes. The bytes of a large weight are compressed first (see `compressed_bytes`). A tied
    weight is read once. Weights that are read from files are checked too.
    """
    return _fingerprint(network, config, progress, lambda x: None)


def _fingerprint(network: Any, config: str, progress: Progress | None, on_numbers: Callable[[Tensor], None]) -> str:
    """The fingerprint. `on_numbers` reads every block of floating-point weights in memory."""
    digest, tensors = hashlib.sha256(config.encode()), _named_tensors(network)
    done, total, tied_digests = 0, sum(x.nbytes for _, x in tensors), dict[Any, bytes]()
    for name, x in tensors:
        digest.update(f"{name}{tuple(x.shape)}{x.dtype}".encode())
        data, block_bytes, on_block = _read(name, x, on_numbers)
        if x.nbytes <= LARGEST_PLAIN_BYTES:
            on_block(data[:])
            digest.update(data[:])
        else:
            tie_key = (x.data_ptr(), x.shape, x.stride(), x.dtype)
            tied_digests[tie_key] = tied_digests.get(tie_key) or _digest_of_blocks(data, block_bytes, on_block)
            digest.update(tied_digests[tie_key])
        done += x.nbytes
        if progress is not None:
            progress(done, total)
    return digest.hexdigest()[:16]


def _read(name: str, x: Tensor, on_numbers: Callable[[Tensor], None]) -> tuple[Any, int, Callable[[Any], None]]:
    """The bytes of a weight, the number that is read together, and what reads the numbers of a block."""
    if isinstance(x, StoredTensor):
        return _read_bytes(name, x.source.on_cpu(), x), HASH_BLOCK_BYTES, lambda block: None
    if not x.is_floating_point() or not x.numel():
        return _tensor_bytes(x), CACHED_BLOCK_BYTES, lambda block: None
    return _tensor_bytes(x), CACHED_BLOCK_BYTES, lambda block: on_numbers(torch.from_numpy(block).view(x.dtype))


def _named_tensors(network: Any) -> list[tuple[str, Tensor]]:
    """All stored weights by name. The name of a tensor inside a tensor subclass also has what the subclass does with it."""
    named_tensors: list[tuple[str, Tensor]] = []
    for name, x in sorted(network.state_dict().items()):
        if not hasattr(x, "__tensor_flatten__"):
            named_tensors.append((name, x))
            continue
        label = f"{name}.{type(x).__name__}{x.__tensor_flatten__()[1]}"
        named_tensors += [(f"{label}.{number}", inner) for number, inner in enumerate(plain_tensors(x))]
    return named_tensors


def _tensor_bytes(x: Tensor) -> Any:
    """The bytes of a tensor as a numpy array; no copy on the CPU."""
    return x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _digest_of_blocks(data: Any, block_bytes: int, on_block: Callable[[Any], None]) -> bytes:
    digest = hashlib.sha256()
    for start in range(0, len(data), block_bytes):
        block = data[start : start + block_bytes]
        digest.update(compressed_bytes(block))
        on_block(block)
    return digest.digest()


def compressed_bytes(data: Any) -> bytes:
    """A universal hash of an array of bytes that is 64 times as short: X R of its rows X and a matrix R of fixed random integers.

    Two arrays of the same length that differ anywhere have the same hash with probability at most (3/256)¹⁶ < 10⁻³⁰ over R. All sums
    are exact in 32 bits, and bytes beyond the end of the last row count as 0.
    """
    rows = torch.from_numpy(data).view(torch.int8)
    n_missing = -len(rows) % HASH_ROW_BYTES
    padded = torch.nn.functional.pad(rows, (0, n_missing)) if n_missing else rows  # the function copies in any case
    return torch._int_mm(padded.view(-1, HASH_ROW_BYTES), hash_matrix()).numpy().tobytes()


@cache
def hash_matrix() -> Int8[Tensor, "4096 16"]:
    """R: integers from -63 to 63. No sum of two products of them with bytes exceeds 16 bits, as some processors require."""
    random_bytes = bytearray(hashlib.shake_256(b"rheoscope").digest(HASH_ROW_BYTES * HASH_COLUMNS))
    integers = torch.frombuffer(random_bytes, dtype=torch.uint8).int() % 127 - 63
    return integers.to(torch.int8).view(HASH_ROW_BYTES, HASH_COLUMNS)


def _read_bytes(name: str, source: Source, x: Tensor) -> Any:
    """The bytes of a weight in files, as they would be in memory: read by slices if that is possible. Their numbers are checked."""
    if source.reads_rows and x.ndim and x.numel():
        return StoredBytes(name, source, len(x), x.nbytes)
    numbers = source.value()
    _check_finite(name, numbers)
    return _tensor_bytes(numbers)


@dataclass(frozen=True)
class StoredBytes:
    """The bytes of a weight in a file. A slice reads only its rows, and checks their numbers."""

    name: str
    source: Source
    n_rows: int
    n_bytes: int

    def __len__(self) -> int:
        return self.n_bytes

    def __getitem__(self, index: slice) -> Any:
        start, stop, _ = index.indices(len(self))
        row_bytes = len(self) // self.n_rows
        first_row = start // row_bytes
        rows = self.source.rows(slice(first_row, -(-stop // row_bytes)))
        _check_finite(self.name, rows)
        return _tensor_bytes(rows)[start - first_row * row_bytes : stop - first_row * row_bytes]


def move_network(
    network: Any, device: torch.device, dtype: torch.dtype | None, buffer_suffixes: tuple[str, ...]
) -> Any:
    """The network on a device and in a dtype; buffers whose names end with `buffer_suffixes` keep their dtype."""
    tensors_to_move = [x for x in [*network.parameters(), *network.buffers()] if x.device != device]
    size = sum(x.numel() * (dtype or x.dtype).itemsize for x in tensors_to_move)
    check_free_memory(Message("the model"), size, device, use(dtype="bfloat16"))
    fixed_buffers = {name: x for name, x in network.named_buffers() if name.endswith(buffer_suffixes)}
    network = network.to(device, dtype)
    for name, x in fixed_buffers.items():
        module_name, _, buffer_name = name.rpartition(".")
        setattr(network.get_submodule(module_name), buffer_name, x.to(device))
    return network


def parse_dtype(dtype: str | None, device: str | None) -> Any:
    """The requested dtype. The default is float32 on the CPU and the checkpoint's dtype on CUDA."""
    if dtype is None:
        return torch.float32 if device in (None, "cpu") else "auto"
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
    if dtype not in dtypes:
        raise RheoscopeError(
            Message("dtype must be one of {names}, got {received!r}", names=", ".join(dtypes), received=dtype),
            use(dtype="float32"),
        )
    return dtypes[dtype]


@cache
def default_device() -> str:
    """The default device: a working GPU, else the CPU."""
    if not torch.cuda.is_available():
        return "cpu"
    try:  # an old driver or a card in exclusive use fails only when it computes
        return "cuda" if float(torch.ones(2, device="cuda").sum()) == 2 else "cpu"
    except RuntimeError:
        return "cpu"


def parse_device(device: str) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise RheoscopeError(
            Message("there is no device {device!r} on this machine", device=device), use(device="cpu")
        ) from error


def check_safetensors(file: Path) -> None:
    """Check header and length without reading the tensors, so that a truncated file fails early."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened_file:
            opened_file.keys()
    except (SafetensorError, OSError) as error:
        raise RheoscopeError(
            Message("{file} is truncated or corrupt ({reason}); download it again", file=str(file), reason=str(error))
        ) from error
