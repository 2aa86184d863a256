"""Weights of any network: fingerprints, finite numbers, whole files, dtypes and devices."""

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from rheoscope.running import weight_files
from rheoscope.running.weight_files import (
    BLOCK,
    check_safetensors,
    check_weights,
    device_of,
    dtype_of,
    fingerprint,
    placed,
)
from rheoscope.shapes import RheoscopeError


def test_fingerprints_tell_names_shapes_and_dtypes_apart() -> None:
    def of(**tensors: Tensor) -> str:
        held = torch.nn.Module()
        for name, x in tensors.items():
            held.register_buffer(name, x)
        return fingerprint(held)

    zeros = torch.zeros(2, 3)
    different = [of(a=zeros), of(b=zeros), of(a=zeros.T.contiguous()), of(a=zeros.double()), of(a=zeros.bfloat16())]
    assert len(set(different)) == len(different)
    assert of(a=zeros, b=zeros) == of(b=zeros, a=zeros)


def of_one(x: Tensor, name: str = "x") -> str:
    held = torch.nn.Module()
    held.register_buffer(name, x)
    return fingerprint(held)


def by_hand(x: Tensor, name: str = "x") -> str:
    """The slow twin: one thread, one block after the other."""
    held = x.numpy().tobytes()
    blocks = [held[at : at + BLOCK] for at in range(0, len(held), BLOCK)]
    told = held if len(blocks) == 1 else b"".join(hashlib.sha256(block).digest() for block in blocks)
    return hashlib.sha256(f"{name}{tuple(x.shape)}{x.dtype}".encode() + told).hexdigest()[:16]


@pytest.mark.parametrize("numbers", [1, BLOCK // 4, BLOCK // 4 + 1, 3 * BLOCK // 4 - 5])
def test_a_long_weight_is_hashed_in_blocks(numbers: int) -> None:
    x = torch.arange(numbers, dtype=torch.float32)
    assert of_one(x) == by_hand(x)
    other = x.clone()
    other[-1] += 1
    assert of_one(other) != of_one(x)
    swapped = torch.cat([x[BLOCK // 4 : BLOCK // 2], x[: BLOCK // 4], x[BLOCK // 2 :]])
    assert (of_one(swapped) == of_one(x)) == torch.equal(swapped, x)


def test_a_tied_weight_is_hashed_as_its_copy_is() -> None:
    x, held, copied = torch.randn(BLOCK // 2), torch.nn.Module(), torch.nn.Module()
    for name in ("a", "b"):
        held.register_buffer(name, x)
        copied.register_buffer(name, x.clone())
    told: list[tuple[int, int]] = []
    assert fingerprint(held, progress=lambda done, total: told.append((done, total))) == fingerprint(copied)
    assert told == [(2 * BLOCK, 4 * BLOCK), (4 * BLOCK, 4 * BLOCK)]


def test_large_finite_weights_are_weights() -> None:
    """A sum may overflow where every number is finite."""
    layer = torch.nn.Linear(4, 4)
    with torch.no_grad():
        layer.weight.fill_(3e38)
    check_weights(layer)


def test_a_config_is_part_of_the_fingerprint() -> None:
    layer = torch.nn.Linear(2, 2)
    assert len({fingerprint(layer), fingerprint(layer, "metric"), fingerprint(layer, "cosine")}) == 3


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_no_numbers_are_refused_by_name(value: float) -> None:
    layer = torch.nn.Linear(4, 4)
    with torch.no_grad():
        layer.bias[2] = value
    with pytest.raises(RheoscopeError, match="the weight bias holds NaN or infinity"):
        check_weights(layer)


@pytest.mark.parametrize("left", [0, 4, 30, -1])
def test_a_cut_file_is_refused(left: int, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"x": torch.ones(9)}, file)
    check_safetensors(file)
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(RheoscopeError, match=r"truncated or corrupt .*; get it again"):
        check_safetensors(file)


def test_tables_keep_their_dtype() -> None:
    held = torch.nn.BatchNorm1d(3)
    half = placed(held, torch.device("cpu"), torch.bfloat16, ("running_mean",))
    assert (half.weight.dtype, half.running_var.dtype) == (torch.bfloat16, torch.bfloat16)
    assert half.running_mean.dtype is torch.float32


def test_dtypes_and_devices_by_name() -> None:
    assert dtype_of(None, None) is dtype_of("float32", "cuda") is torch.float32
    assert dtype_of(None, "cuda") == "auto"
    assert device_of("cpu") == torch.device("cpu")
    with pytest.raises(RheoscopeError, match="unknown dtype 'int8'; type one of float32"):
        dtype_of("int8", None)
    with pytest.raises(RheoscopeError, match="there is no device 'warp' here"):
        device_of("warp")


def test_a_gpu_that_computes_is_the_usual_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object, **kw: object) -> None:
        raise RuntimeError("CUDA driver version is insufficient")

    for there, ones, place in (
        (False, fails, "cpu"),
        (True, fails, "cpu"),
        (True, lambda n, device: torch.full((n,), 1.0), "cuda"),
    ):
        monkeypatch.setattr(weight_files.torch.cuda, "is_available", lambda there=there: there)
        monkeypatch.setattr(weight_files.torch, "ones", ones)
        weight_files.usual_device.cache_clear()
        assert weight_files.usual_device() == place
    weight_files.usual_device.cache_clear()
