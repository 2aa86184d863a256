"""Kernels that prepare and finish attention, by Triton's interpreter: what torch says in plain words, they do.

float16, since the interpreter cuts bfloat16 off where a GPU rounds. On a GPU test_gpu.py runs the kernels themselves.
"""

import os

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("a GPU runs the kernels themselves", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before triton is first imported
pytest.importorskip("triton", reason="triton is not installed")

from rheoscope.attention.lower import merged_softmax
from rheoscope.attention.lower import running_mean as plain
from rheoscope.attention.lower.kernel_rows import RowLayout, pack_rows_torch
from rheoscope.attention.lower.kernels import merge, rows, running_mean, sink, widen_dtype
from tests.attention.cases import gap, random
from tests.interpreter import mend_interpreter


@pytest.fixture(autouse=True)
def _mended() -> None:
    mend_interpreter()


MADE = [
    RowLayout(unit_length=True),
    RowLayout(bias_groups=1),
    RowLayout(bias_groups=1, is_key=True, square=0.5),
    RowLayout(bias_groups=2, square=0.5),
    RowLayout(unit_length=True, bias_groups=2, is_key=True, square=0.7, scale=0.3),
]


@pytest.mark.parametrize("made", MADE, ids=str)
@pytest.mark.parametrize("d", [16, 20])
@pytest.mark.parametrize("turned", [False, True])
def test_rows(made: RowLayout, d: int, turned: bool) -> None:
    x = random(1, 2, 37, 3, d).half().transpose(1, 2) if turned else random(1, 2, 3, 37, d).half()
    bias = (100 * random(2, 3, 37).float()).requires_grad_() if made.is_key else None
    leaf = x.detach().clone().requires_grad_()
    y = pack_rows_torch(leaf, bias, made, torch.float16)
    g = random(3, *y.shape).half()
    right = torch.autograd.grad(y, [leaf] if bias is None else [leaf, bias], g)
    assert gap(rows.pack(x, None if bias is None else bias.detach(), made, torch.float16), y) < 1e-5
    dx, dz = rows.pack_backward(x, g, made, bias is not None)
    assert gap(dx, right[0]) < 2e-3
    assert dz is None or gap(dz.sum(0), right[1]) < 1e-3


@pytest.mark.parametrize("n", [5, 64, 150])
def test_the_past(n: int) -> None:
    x, y, g = (random(at, 2, 2, n, 12).float() for at in range(3))
    leaf = x.clone().requires_grad_()
    right = plain.subtract_past_mean_torch(leaf, y, 0.7, 1.3)
    assert gap(running_mean.subtract_running_mean(x, y, 0.7, 1.3, reverse=False), right) < 1e-6
    assert (
        gap(running_mean.subtract_running_mean(g, None, 0.7, 1.3, reverse=True), torch.autograd.grad(right, leaf, g)[0])
        < 1e-6
    )


@pytest.mark.parametrize("heights", [random(1, 3).float(), torch.zeros(1)], ids=["a head", "shared"])
def test_the_sink(heights: torch.Tensor) -> None:
    out, lse = random(1, 2, 37, 3, 16).float().transpose(1, 2), random(2, 2, 3, 37, 1).float()
    total = torch.logaddexp(lse, heights.reshape(-1, 1, 1))
    right = out * (lse - total).exp()
    assert gap(sink.add_sink(out, lse, heights), total) < 1e-6
    assert gap(out, right) < 1e-6


def test_near_and_far_joined() -> None:
    near, far, g = (random(seed, 2, 3, n, 20).half() for seed, n in ((1, 70), (2, 61), (3, 70)))
    within, beyond, shift = random(4, 2, 3, 70).float(), random(5, 2, 3, 61).float(), random(6, 3).float()
    right = merged_softmax.mix_near_and_far(near, within, far, beyond, shift, 9)
    own = merge.mix_near_and_far(near, within, far, beyond, shift, 9)
    assert max(gap(x, y) for x, y in zip(own, right, strict=True)) < 2e-3
    back, due = merge.mix_backward(g, near, own[0], own[2]), merged_softmax.mix_backward(g, near, own[0], own[2])
    assert max(gap(x, y) for x, y in zip(back, due, strict=True)) < 1e-2


@pytest.mark.parametrize("count", [1, 8192, 20_001])
def test_widened_numbers_are_those_that_were_there(count: int) -> None:
    x, out = random(0, count).half(), torch.full((count + 1,), torch.nan)
    widen_dtype.copy_to_float32(x, out[:-1])
    assert torch.equal(out[:-1], x.float())
    assert out[-1].isnan()
