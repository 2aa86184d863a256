"""Kernels that prepare and finish attention equal their torch versions, in Triton's interpreter.

The tests use float16, because the interpreter truncates bfloat16 and a GPU rounds it. test_gpu.py tests the compiled kernels.
"""

import os

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("there is a GPU, which runs the compiled kernels", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before triton is first imported
pytest.importorskip("triton", reason="triton is not installed")

from rheoscope.attention.lower import merged_softmax
from rheoscope.attention.lower import running_mean as torch_version
from rheoscope.attention.lower.kernel_rows import pack_rows_torch
from rheoscope.attention.lower.kernels import merge, rows, running_mean, sink, widen_dtype
from rheoscope.attention.lower.row_layout import RowLayout
from tests.attention.cases import gap, random
from tests.interpreter import patch_interpreter


@pytest.fixture(autouse=True)
def _patched_interpreter() -> None:
    patch_interpreter()


LAYOUTS = [
    RowLayout(unit_length=True),
    RowLayout(bias_groups=1),
    RowLayout(bias_groups=1, is_key=True, square=0.5),
    RowLayout(bias_groups=2, square=0.5),
    RowLayout(unit_length=True, bias_groups=2, is_key=True, square=0.7, scale=0.3),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("d", [16, 20])
@pytest.mark.parametrize("transposed", [False, True])
def test_packed_rows_and_their_gradients_equal_the_torch_version(layout: RowLayout, d: int, transposed: bool) -> None:
    x = random(1, 2, 37, 3, d).half().transpose(1, 2) if transposed else random(1, 2, 3, 37, d).half()
    bias = (100 * random(2, 3, 37).float()).requires_grad_() if layout.is_key else None
    leaf = x.detach().clone().requires_grad_()
    y = pack_rows_torch(leaf, bias, layout, torch.float16)
    g = random(3, *y.shape).half()
    expected = torch.autograd.grad(y, [leaf] if bias is None else [leaf, bias], g)
    assert gap(rows.pack(x, None if bias is None else bias.detach(), layout, torch.float16), y) < 1e-5
    dx, dz = rows.pack_backward(x, g, layout, bias is not None)
    assert gap(dx, expected[0]) < 2e-3
    assert dz is None or gap(dz.sum(0), expected[1]) < 1e-3


@pytest.mark.parametrize("n", [5, 64, 150])
def test_the_running_mean_and_its_gradient_equal_the_torch_version(n: int) -> None:
    x, y, g = (random(seed, 2, 2, n, 12).float() for seed in range(3))
    leaf = x.clone().requires_grad_()
    expected = torch_version.subtract_past_mean_torch(leaf, y, 0.7, 1.3)
    assert gap(running_mean.subtract_running_mean(x, y, 0.7, 1.3, reverse=False), expected) < 1e-6
    gradient = torch.autograd.grad(expected, leaf, g)[0]
    assert gap(running_mean.subtract_running_mean(g, None, 0.7, 1.3, reverse=True), gradient) < 1e-6


@pytest.mark.parametrize("sink_scores", [random(1, 3).float(), torch.zeros(1)], ids=["per head", "shared"])
def test_adding_a_sink_rescales_the_outputs(sink_scores: torch.Tensor) -> None:
    out, lse = random(1, 2, 37, 3, 16).float().transpose(1, 2), random(2, 2, 3, 37, 1).float()
    total = torch.logaddexp(lse, sink_scores.reshape(-1, 1, 1))
    expected = out * (lse - total).exp()
    assert gap(sink.add_sink(out, lse, sink_scores), total) < 1e-6
    assert gap(out, expected) < 1e-6


def test_mixing_near_and_far_keys_equals_the_torch_version() -> None:
    near, far, g = (random(seed, 2, 3, n, 20).half() for seed, n in ((1, 70), (2, 61), (3, 70)))
    near_lse, far_lse, far_bias = random(4, 2, 3, 70).float(), random(5, 2, 3, 61).float(), random(6, 3).float()
    expected = merged_softmax.mix_near_and_far(near, near_lse, far, far_lse, far_bias, 9)
    actual = merge.mix_near_and_far(near, near_lse, far, far_lse, far_bias, 9)
    assert max(gap(x, y) for x, y in zip(actual, expected, strict=True)) < 2e-3
    inputs = (g, near, actual[0], actual[2])
    gradients, expected_gradients = merge.mix_backward(*inputs), merged_softmax.mix_backward(*inputs)
    assert max(gap(x, y) for x, y in zip(gradients, expected_gradients, strict=True)) < 1e-2


@pytest.mark.parametrize("count", [1, 8192, 20_001])
def test_copying_to_float32_keeps_the_numbers(count: int) -> None:
    x, out = random(0, count).half(), torch.full((count + 1,), torch.nan)
    widen_dtype.copy_to_float32(x, out[:-1])
    assert torch.equal(out[:-1], x.float())
    assert out[-1].isnan()
