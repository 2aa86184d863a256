"""Out-of-memory errors of a GPU become one line with advice."""

import pytest
import torch

import rheoscope as rs
from rheoscope.attention import memory
from rheoscope.attention.memory import check_free_memory, explain_out_of_memory
from rheoscope.messages.advice import use
from rheoscope.shapes import RheoscopeError


@pytest.mark.parametrize(
    ("torch_text", "expected"),
    [
        ("HIP", "a map needs more memory than the GPU has; type device='cpu'"),
        ("Tried to allocate 2.00 GiB.", "a map needs 2.00 GiB more GPU memory; type device='cpu'"),
        ("GPU 0, of which 1.00 MiB is free", "a map needs more GPU memory, 1.00 MiB are free; type device='cpu'"),
    ],
)
def test_out_of_memory_is_one_line_for_any_text_of_torch(torch_text: str, expected: str) -> None:
    with pytest.raises(RheoscopeError) as caught, explain_out_of_memory("a map", use(device="cpu")):
        raise torch.OutOfMemoryError(torch_text)
    assert str(caught.value) == expected


def test_attention_out_of_memory_has_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    q = torch.randn(1, 1, 4, 8)
    metric = rs.mechanism("metric")

    def run_out_of_memory(*args: object) -> None:
        raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB. GPU 0 has a total of 3 of which 1.00 MiB is free.")

    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", run_out_of_memory)
    monkeypatch.setattr("rheoscope.attention.lower.sdpa.fused_attention", run_out_of_memory)
    with pytest.raises(RheoscopeError, match=r"needs 2.00 GiB more .*, 1.00 MiB are free; type q\.bfloat16\(\)"):
        metric(q, q, q)


def test_allocation_beyond_the_free_memory_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.torch.cuda, "mem_get_info", lambda device: (3 << 30, 80 << 30))
    advice = use(dtype="bfloat16")
    check_free_memory("the model", 2 << 30, torch.device("cuda"), advice)
    check_free_memory("the model", 9 << 30, torch.device("cpu"), advice)
    with pytest.raises(RheoscopeError, match=r"needs 9.0 GiB, cuda has 3.0 GiB free; type dtype='bfloat16'"):
        check_free_memory("the model", 9 << 30, torch.device("cuda"), advice)
