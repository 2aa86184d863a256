"""The weights of any network: finite, told apart by a hash, in a whole file, where and in the dtype that is wanted."""

import hashlib
import warnings
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rheoscope.attention.memory import check_room
from rheoscope.running.loading_stages import Progress
from rheoscope.shapes import RheoscopeError

BLOCK = 2**22
"""Weights of more bytes than this are hashed in blocks of it: SHA-256 three times as fast as BLAKE2b here, and hashlib lets threads run."""


def check_weights(network: Any) -> None:
    """Refuse weights that are not numbers, by name."""
    settle_half_precision()
    for name, x in network.named_parameters():
        if x.is_floating_point() and not bool(x.sum().isfinite()) and not bool(x.isfinite().all()):
            raise RheoscopeError(f"the weight {name} holds NaN or infinity; the checkpoint is broken: get it again")


@cache
def settle_half_precision() -> None:
    """Let torch find out once, and quietly, whether this CPU multiplies bfloat16.

    Where it does not, the first product prints a page of addresses and switches a library off for the whole process, float32
    too: what was computed before would differ in its last bits from what comes after.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "mkldnn_matmul failed")
        torch.nn.functional.linear(*torch.ones(2, 64, 64, dtype=torch.bfloat16))


def fingerprint(network: Any, config: str = "", progress: Progress | None = None) -> str:
    """A hash of every weight (16 hex digits) and of what a config says: the same one is the same model.

    SHA-256 of names, shapes, dtypes and bytes, for which processors have instructions; a weight longer than `BLOCK` gives that of
    each block instead, which all cores compute at once. A tied weight is read once.
    """
    digest, held = hashlib.sha256(config.encode()), sorted(network.state_dict().items())
    done, total, known = 0, sum(x.nbytes for _, x in held), dict[Any, bytes]()
    with ThreadPoolExecutor() as pool:
        for name, x in held:
            digest.update(f"{name}{tuple(x.shape)}{x.dtype}".encode())
            if x.nbytes <= BLOCK:
                digest.update(_bytes(x))
            else:
                tied = (x.data_ptr(), x.shape, x.stride(), x.dtype)
                known[tied] = known.get(tied) or _of_blocks(_bytes(x), pool)
                digest.update(known[tied])
            done += x.nbytes
            if progress is not None:
                progress(done, total)
    return digest.hexdigest()[:16]


def _bytes(x: Tensor) -> Any:
    """The numbers of a tensor as numpy sees them, byte by byte; no copy on the CPU."""
    return x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _of_blocks(held: Any, pool: Executor) -> bytes:
    blocks = (held[at : at + BLOCK] for at in range(0, len(held), BLOCK))
    return b"".join(pool.map(lambda block: hashlib.sha256(block).digest(), blocks))


def placed(network: Any, device: torch.device, dtype: torch.dtype | None, tables: tuple[str, ...]) -> Any:
    """The network on a device and in a dtype; buffers whose names end as `tables` say keep theirs."""
    held = [x for x in [*network.parameters(), *network.buffers()] if x.device != device]
    size = sum(x.numel() * (dtype or x.dtype).itemsize for x in held)
    check_room("the model", size, device, "device='cpu', or dtype='bfloat16'")
    kept = {name: x for name, x in network.named_buffers() if name.endswith(tables)}
    network = network.to(device, dtype)
    for name, x in kept.items():
        module, _, leaf = name.rpartition(".")
        setattr(network.get_submodule(module), leaf, x.to(device))
    return network


def dtype_of(dtype: str | None, device: str | None) -> Any:
    """float32 on the CPU, the checkpoint's own on CUDA, or the one asked for."""
    if dtype is None:
        return torch.float32 if device in (None, "cpu") else "auto"
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
    if dtype not in known:
        raise RheoscopeError(f"unknown dtype {dtype!r}; type one of {', '.join(known)}")
    return known[dtype]


@cache
def usual_device() -> str:
    """Where a model goes when nobody says: to a GPU, where there is one that computes, else to the CPU."""
    if not torch.cuda.is_available():
        return "cpu"
    try:  # a driver that is too old, or a card that another process holds alone, is told only by work
        return "cuda" if float(torch.ones(2, device="cuda").sum()) == 2 else "cpu"
    except RuntimeError:
        return "cpu"


def device_of(device: str) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise RheoscopeError(f"there is no device {device!r} here; type device='cpu'") from error


def check_safetensors(file: Path) -> None:
    """Header and length, without reading the tensors: a truncated file is refused before anything is built."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened_file:
            opened_file.keys()
    except (SafetensorError, OSError) as error:
        raise RheoscopeError(f"{file} is truncated or corrupt ({error}); get it again") from error
