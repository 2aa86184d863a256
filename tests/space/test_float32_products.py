"""Products in half precision, with sums in float32."""

import pytest
import torch

from rheoscope.space.float32_products import product
from tests.cases import random


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_numbers_of_half_precision_are_multiplied_exactly(dtype: torch.dtype) -> None:
    a, W = random(0, 2, 3, 40).to(dtype), random(1, 40, 7).to(dtype).float()
    found = product(a, W)
    assert found.dtype == torch.promote_types(dtype, torch.float32)
    assert torch.allclose(found.double(), a.double() @ W.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_gpu_gives_the_same_whatever_the_width(dtype: torch.dtype) -> None:
    for width in (7, 64, 501):
        a, W = random(0, 2, 30, 400).to(dtype).cpu(), random(1, 400, width).to(dtype).float().cpu()
        found = product(a.cuda(), W.cuda())
        assert found.dtype == torch.float32
        assert torch.allclose(found.cpu().double(), a.double() @ W.double(), rtol=1e-4, atol=1e-4)
