"""What the tests of the covers share: bare models whose heads are planted, and traces whose points are."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import rheoscope as rs
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer


def bare(heads: int = 1, depth: int = 1, width: int = 16, **more: Any) -> Any:
    """A model with RMSNorm, random weights and, unless asked for, no position."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {"vocabulary": 300, "position": "none"} | more
    return rs.load(Transformer(Config(width=width, depth=depth, heads=heads, **settings)).double().eval())


def on(model: Any, cloud: Tensor) -> Any:
    """A Trace whose every step is this cloud."""
    trace = model.trace(list(range(1, len(cloud) + 1)))
    return replace(trace, points=cloud.to(trace.points).expand(len(trace.steps), -1, -1).clone())
