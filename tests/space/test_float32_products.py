"""Half-precision products with float32 sums."""

import pytest
import torch

from rheoscope.space.float32_products import mixed_precision_matmul
from tests.cases import random


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_half_precision_numbers_are_multiplied_exactly(dtype: torch.dtype) -> None:
    a, W = random(0, 2, 3, 40).to(dtype), random(1, 40, 7).to(dtype).float()
    product = mixed_precision_matmul(a, W)
    assert product.dtype == torch.promote_types(dtype, torch.float32)
    assert torch.allclose(product.double(), a.double() @ W.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gpu_equals_cpu_at_every_width(dtype: torch.dtype) -> None:
    for width in (7, 64, 501):
        a, W = random(0, 2, 30, 400).to(dtype).cpu(), random(1, 400, width).to(dtype).float().cpu()
        product = mixed_precision_matmul(a.cuda(), W.cuda())
        assert product.dtype == torch.float32
        assert torch.allclose(product.cpu().double(), a.double() @ W.double(), rtol=1e-4, atol=1e-4)
