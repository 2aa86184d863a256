"""Weights of any network: fingerprints, finite numbers, truncated files, dtypes and devices."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from rheoscope.running import weight_files
from rheoscope.running.weight_files import (
    HASH_BLOCK_BYTES,
    HASH_ROW_BYTES,
    LARGEST_PLAIN_BYTES,
    check_safetensors,
    check_weights,
    checked_fingerprint,
    compressed_bytes,
    fingerprint,
    hash_matrix,
    move_network,
    parse_device,
    parse_dtype,
)
from rheoscope.shapes import RheoscopeError


def test_fingerprint_depends_on_names_shapes_and_dtypes() -> None:
    def hash_of(**tensors: Tensor) -> str:
        module = torch.nn.Module()
        for name, x in tensors.items():
            module.register_buffer(name, x)
        return fingerprint(module)

    zeros = torch.zeros(2, 3)
    different = [
        hash_of(a=zeros),
        hash_of(b=zeros),
        hash_of(a=zeros.T.contiguous()),
        hash_of(a=zeros.double()),
        hash_of(a=zeros.bfloat16()),
    ]
    assert len(set(different)) == len(different)
    assert hash_of(a=zeros, b=zeros) == hash_of(b=zeros, a=zeros)


def hash_of_one(x: Tensor, name: str = "x") -> str:
    module = torch.nn.Module()
    module.register_buffer(name, x)
    return fingerprint(module)


def expected_hash(x: Tensor, name: str = "x") -> str:
    """The slow reference: exact integers, one row after the other."""
    data = x.numpy().tobytes()
    if len(data) > LARGEST_PLAIN_BYTES:
        rows = np.frombuffer(data + bytes(-len(data) % HASH_ROW_BYTES), np.int8).reshape(-1, HASH_ROW_BYTES)
        products = np.stack([row.astype(np.int64) @ hash_matrix().numpy().astype(np.int64) for row in rows])
        data = hashlib.sha256(products.astype(np.int32).tobytes()).digest()
    return hashlib.sha256(f"{name}{tuple(x.shape)}{x.dtype}".encode() + data).hexdigest()[:16]


@pytest.mark.parametrize(
    "numbers",
    [
        1,
        LARGEST_PLAIN_BYTES // 4,
        LARGEST_PLAIN_BYTES // 4 + 1,
        HASH_BLOCK_BYTES // 4,
        HASH_BLOCK_BYTES // 4 + 1,
        3 * HASH_BLOCK_BYTES // 4 - 5,
    ],
)
def test_long_weight_is_compressed_before_it_is_hashed(numbers: int) -> None:
    x = torch.arange(numbers, dtype=torch.float32)
    assert hash_of_one(x) == expected_hash(x)
    other = x.clone()
    other[-1] += 1
    assert hash_of_one(other) != hash_of_one(x)
    swapped = torch.cat(
        [x[HASH_BLOCK_BYTES // 4 : HASH_BLOCK_BYTES // 2], x[: HASH_BLOCK_BYTES // 4], x[HASH_BLOCK_BYTES // 2 :]]
    )
    assert (hash_of_one(swapped) == hash_of_one(x)) == torch.equal(swapped, x)


@pytest.mark.parametrize("value", [0, 127, -128])
def test_extreme_bytes_are_summed_exactly(value: int) -> None:
    x = torch.full((2 * LARGEST_PLAIN_BYTES,), value, dtype=torch.int8)
    assert hash_of_one(x) == expected_hash(x)


def test_one_changed_bit_changes_the_compressed_bytes() -> None:
    data = np.random.default_rng(0).integers(0, 256, HASH_ROW_BYTES * 2 + 5, dtype=np.uint8)
    compressed = {compressed_bytes(data)}
    for place in range(0, len(data), 251):
        for bit in range(8):
            changed = data.copy()
            changed[place] ^= 1 << bit
            compressed.add(compressed_bytes(changed))
    assert len(compressed) == 1 + 8 * len(range(0, len(data), 251))


def test_tied_weight_has_the_hash_of_its_copy() -> None:
    x, module, copied = torch.randn(HASH_BLOCK_BYTES // 2), torch.nn.Module(), torch.nn.Module()
    for name in ("a", "b"):
        module.register_buffer(name, x)
        copied.register_buffer(name, x.clone())
    calls: list[tuple[int, int]] = []
    assert fingerprint(module, progress=lambda done, total: calls.append((done, total))) == fingerprint(copied)
    assert calls == [(2 * HASH_BLOCK_BYTES, 4 * HASH_BLOCK_BYTES), (4 * HASH_BLOCK_BYTES, 4 * HASH_BLOCK_BYTES)]


def test_large_finite_weights_pass() -> None:
    """A sum may overflow although every number is finite."""
    layer = torch.nn.Linear(4, 4)
    with torch.no_grad():
        layer.weight.fill_(3e38)
    check_weights(layer)


def test_config_is_part_of_the_fingerprint() -> None:
    layer = torch.nn.Linear(2, 2)
    assert len({fingerprint(layer), fingerprint(layer, "metric"), fingerprint(layer, "cosine")}) == 3


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_nan_weights_raise_with_their_name(value: float) -> None:
    layer = torch.nn.Linear(4, 4)
    with torch.no_grad():
        layer.bias[2] = value
    with pytest.raises(RheoscopeError, match="the weight bias holds NaN or infinity"):
        check_weights(layer)


@pytest.mark.parametrize("size", [4, HASH_BLOCK_BYTES // 4 + 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_checked_fingerprint_is_the_fingerprint_and_refuses_nan(size: int, dtype: torch.dtype) -> None:
    module = torch.nn.Module()
    module.mask = torch.nn.Buffer(torch.full((4,), -torch.inf))  # a buffer may hold infinity
    module.counts = torch.nn.Buffer(torch.arange(3))
    module.weight = module.tied = torch.nn.Parameter(torch.randn(size).to(dtype))
    assert checked_fingerprint(module, "config") == fingerprint(module, "config")
    with torch.no_grad():
        module.weight.fill_(torch.finfo(dtype).max)  # the sums overflow
    assert checked_fingerprint(module) == fingerprint(module)
    with torch.no_grad():
        module.weight[-1] = torch.nan
    with pytest.raises(RheoscopeError, match="the weight weight holds NaN or infinity"):
        checked_fingerprint(module)


@pytest.mark.parametrize("kept_bytes", [0, 4, 30, -1])
def test_truncated_file_raises(kept_bytes: int, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"x": torch.ones(9)}, file)
    check_safetensors(file)
    file.write_bytes(file.read_bytes()[:kept_bytes])
    with pytest.raises(RheoscopeError, match=r"truncated or corrupt .*; download it again"):
        check_safetensors(file)


def test_named_buffers_keep_their_dtype() -> None:
    module = torch.nn.BatchNorm1d(3)
    half = move_network(module, torch.device("cpu"), torch.bfloat16, ("running_mean",))
    assert (half.weight.dtype, half.running_var.dtype) == (torch.bfloat16, torch.bfloat16)
    assert half.running_mean.dtype is torch.float32


def test_dtypes_and_devices_are_parsed_by_name() -> None:
    assert parse_dtype(None, None) is parse_dtype("float32", "cuda") is torch.float32
    assert parse_dtype(None, "cuda") == "auto"
    assert parse_device("cpu") == torch.device("cpu")
    with pytest.raises(RheoscopeError, match=r"dtype must be one of float32, .*, got 'int8'"):
        parse_dtype("int8", None)
    with pytest.raises(RheoscopeError, match="there is no device 'warp' on this machine"):
        parse_device("warp")


def test_default_device_is_a_working_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kw: object) -> None:
        raise RuntimeError("CUDA driver version is insufficient")

    for is_available, ones, expected in (
        (False, fail, "cpu"),
        (True, fail, "cpu"),
        (True, lambda n, device: torch.full((n,), 1.0), "cuda"),
    ):
        monkeypatch.setattr(weight_files.torch.cuda, "is_available", lambda is_available=is_available: is_available)
        monkeypatch.setattr(weight_files.torch, "ones", ones)
        weight_files.default_device.cache_clear()
        assert weight_files.default_device() == expected
    weight_files.default_device.cache_clear()
