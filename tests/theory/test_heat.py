"""Density, slope and quantiles belong together; the average is the plain one."""

import math

import pytest
import torch

from rheoscope.theory.heat import CENTRES, WIDTH, density, log_density_slope, quantiles, scaled_change
from rheoscope.theory.particles import integrate


def test_the_slope_is_the_derivative_of_the_log_density() -> None:
    x = torch.linspace(-3, 3, 20, dtype=torch.float64, requires_grad=True)
    (due,) = torch.autograd.grad(density(x).log().sum(), x)
    assert torch.allclose(log_density_slope(x.detach()), due)
    assert integrate(density, -9.0, 9.0) == pytest.approx(1)


def test_quantiles_have_the_density() -> None:
    x = quantiles(1001)
    level = torch.special.ndtr((x - torch.tensor(CENTRES, dtype=x.dtype)[:, None]) / WIDTH).mean(0)
    assert torch.allclose(level, (torch.arange(1001, dtype=x.dtype) + 0.5) / 1001)


def test_smoothing_is_an_average_by_nearness() -> None:
    tokens, x, epsilon = [-1.0, 0.2, 0.9], 0.3, 0.4
    kernel = [math.exp(-((x - y) ** 2) / (2 * epsilon)) for y in tokens]
    mean = sum(k * math.sin(y) for k, y in zip(kernel, tokens, strict=True)) / sum(kernel)
    found = scaled_change(torch.tensor([x], dtype=torch.float64), torch.tensor(tokens, dtype=torch.float64), epsilon)
    assert float(found) == pytest.approx((mean - math.sin(x)) / epsilon)
