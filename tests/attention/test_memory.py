"""A GPU that is full is one line."""

import pytest
import torch

import rheoscope as rs
from rheoscope.attention import memory
from rheoscope.attention.memory import check_room, fitting
from rheoscope.shapes import RheoscopeError


def test_a_full_gpu_is_one_line_whatever_torch_says() -> None:
    with (
        pytest.raises(RheoscopeError, match=r"^a map wants more than the GPU's memory; type less$"),
        fitting("a map", "less"),
    ):
        raise torch.OutOfMemoryError("HIP")


def test_attention_that_does_not_fit_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    q = torch.randn(1, 1, 4, 8)
    metric = rs.mechanism("metric")

    def full(*args: object) -> None:
        raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB. GPU 0 has a total of 3 of which 1.00 MiB is free.")

    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", full)
    monkeypatch.setattr("rheoscope.attention.lower.sdpa.kernel", full)
    with pytest.raises(RheoscopeError, match=r"wants 2.00 GiB more .*, 1.00 MiB are free; type a shorter text"):
        metric(q, q, q)


def test_what_is_larger_than_a_gpu_is_refused_before_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.torch.cuda, "mem_get_info", lambda device: (3 << 30, 80 << 30))
    check_room("the model", 2 << 30, torch.device("cuda"), "dtype='bfloat16'")
    check_room("the model", 9 << 30, torch.device("cpu"), "dtype='bfloat16'")
    with pytest.raises(RheoscopeError, match=r"needs 9.0 GiB, cuda has 3.0 free; type dtype='bfloat16'"):
        check_room("the model", 9 << 30, torch.device("cuda"), "dtype='bfloat16'")
