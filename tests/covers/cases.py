"""Small models with random weights, and traces with prescribed points, for the tests of covers/."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import rheoscope as rs
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer


def random_model(heads: int = 1, depth: int = 1, width: int = 16, **options: Any) -> Any:
    """A model with RMSNorm, random weights and, by default, no position encoding. Tests may write into its operators."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {"vocabulary": 300, "position": "none"} | options
    return writable(rs.load(Transformer(Config(width=width, depth=depth, heads=heads, **settings)).double().eval()))


def writable(model: Any) -> Any:
    """The model without the check that its weights are unchanged. Its operators are views of its weights."""
    return model.without_check()


def trace_with_points(model: Any, cloud: Tensor) -> Any:
    """A Trace that has this cloud at every step."""
    trace = model.trace(list(range(1, len(cloud) + 1)))
    return replace(trace, points=cloud.to(trace.points).expand(len(trace.steps), -1, -1).clone())
