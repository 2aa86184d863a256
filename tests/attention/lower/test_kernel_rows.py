"""Rows for half-precision kernels: their dot products are the scores, with biases as exact as float32."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rheoscope.attention.lower.kernel_rows import pack_rows, pack_rows_torch, split_in_parts
from rheoscope.attention.lower.row_layout import GAIN, PARTS, RowLayout
from tests.attention.cases import gap, random

HALF = [torch.bfloat16, torch.float16]


@settings(max_examples=30)
@given(z=st.floats(-1e4, 1e4, width=32))
def test_two_parts_hold_16_bits_of_a_bias_and_three_hold_float32(z: float) -> None:
    exact = torch.tensor(z)
    parts = split_in_parts(exact, torch.bfloat16).double()
    tiny = 1e-37  # smaller numbers are subnormal
    assert abs(float(parts[:2].sum()) - z) <= 2**-16 * abs(z) + tiny
    assert abs(float(parts.sum()) - z) <= 2**-24 * abs(z) + tiny
    assert float(split_in_parts(exact, torch.float16).double().sum()) == pytest.approx(z, rel=2**-24, abs=2**-24)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("d", [5, 13, 16])
def test_the_dot_product_of_packed_rows_is_the_score(dtype: torch.dtype, columns: int, d: int) -> None:
    q, k, bias = random(1, 2, 3, 4, d).to(dtype), 3 * random(2, 2, 3, 5, d).to(dtype), 100 * random(3, 3, 5).float()
    a = pack_rows(q, None, RowLayout(False, columns, False, 0.5, 0.7), dtype).double()
    b = pack_rows(k, bias, RowLayout(False, columns, True, 0.5, 0.7), dtype).double()
    assert a.shape[-1] == b.shape[-1]
    assert a.shape[-1] % 16 == 0
    q, k = q.double(), k.double()
    query_bias = -0.5 * q.square().sum(-1)[..., None] if columns == 2 else 0.0
    scores = 0.7 * q @ k.mT + (bias.double() - 0.5 * k.square().sum(-1))[..., None, :] + query_bias
    assert gap(0.7 * a @ b.mT, scores) < 1e-6


def test_one_column_is_too_few_for_the_bias() -> None:
    """One bfloat16 column has an error of 0.1 for the bias of a typical key, so there are three."""
    k = 3 * random(2, 1, 1, 50, 64).bfloat16()
    packed = pack_rows_torch(k, None, RowLayout(False, 1, True, 0.5, 1.0), torch.bfloat16).double()
    bias = -0.5 * k.double().square().sum(-1)
    errors = [float((GAIN * packed[..., 64 : 64 + n].sum(-1) - bias).abs().max()) for n in range(1, PARTS + 1)]
    assert errors[0] > 0.1
    assert errors[1] < 0.01
    assert errors[2] < 1e-4


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_unit_rows_are_rounded_once(dtype: torch.dtype) -> None:
    x = random(1, 2, 3, 4, 8).to(dtype)
    x[0, 0, 0] = 0.0
    unit = pack_rows(x, None, RowLayout(unit_length=True), dtype)
    exact = torch.nn.functional.normalize(x.double(), dim=-1)
    assert gap(unit, exact.to(dtype)) == 0
    assert not unit[0, 0, 0].any()


def test_rows_that_need_no_change_are_returned() -> None:
    x = random(1, 1, 1, 4, 16).bfloat16()
    assert pack_rows(x, None, RowLayout(), torch.bfloat16) is x
    assert pack_rows(x.float(), None, RowLayout(), torch.bfloat16).dtype is torch.bfloat16
    assert pack_rows(x[..., :3], None, RowLayout(), torch.bfloat16).shape[-1] == 8


def test_gradients_ignore_the_rounding() -> None:
    """The gradient of the bias comes from its first column; the other columns hold the rounding error."""
    layout = RowLayout(True, 1, True, 0.5, 0.7)
    x, bias = random(1, 1, 2, 3, 4).float().requires_grad_(), random(2, 2, 3).float().requires_grad_()
    y = pack_rows_torch(x, bias, layout, torch.float16)
    g = torch.zeros_like(y)
    g[..., :5] = random(3, *g[..., :5].shape)
    actual = torch.autograd.grad(y, (x, bias), g)
    unit = x / x.norm(dim=-1, keepdim=True)
    z = (bias - 0.5 * unit.square().sum(-1)) / (GAIN * 0.7)
    expected = torch.autograd.grad(torch.cat([unit, z[..., None]], -1), (x, bias), g[..., :5].float())
    assert max(gap(a, b) for a, b in zip(actual, expected, strict=True)) < 2e-3
