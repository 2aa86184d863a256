"""Tests of density, its log slope, quantiles and smoothing."""

import math

import pytest
import torch

from rheoscope.theory.heat import CENTRES, WIDTH, density, log_density_slope, quantiles, scaled_change
from rheoscope.theory.particles import integrate


def test_log_density_slope_is_the_derivative() -> None:
    x = torch.linspace(-3, 3, 20, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(density(x).log().sum(), x)
    assert torch.allclose(log_density_slope(x.detach()), expected)
    assert integrate(density, -9.0, 9.0) == pytest.approx(1)


def test_quantiles_invert_the_distribution_function() -> None:
    x = quantiles(1001)
    level = torch.special.ndtr((x - torch.tensor(CENTRES, dtype=x.dtype)[:, None]) / WIDTH).mean(0)
    assert torch.allclose(level, (torch.arange(1001, dtype=x.dtype) + 0.5) / 1001)


def test_smoothing_equals_a_kernel_average() -> None:
    tokens, x, epsilon = [-1.0, 0.2, 0.9], 0.3, 0.4
    kernel = [math.exp(-((x - y) ** 2) / (2 * epsilon)) for y in tokens]
    mean = sum(k * math.sin(y) for k, y in zip(kernel, tokens, strict=True)) / sum(kernel)
    result = scaled_change(torch.tensor([x], dtype=torch.float64), torch.tensor(tokens, dtype=torch.float64), epsilon)
    assert float(result) == pytest.approx((mean - math.sin(x)) / epsilon)
