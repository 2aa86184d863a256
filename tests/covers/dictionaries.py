"""Sparse dictionaries for the tests: random ones, and exact ones whose features are planted."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rheoscope.running.feature_activations import FeatureActivation, ReLU, TopK
from rheoscope.running.feature_sites import Site
from rheoscope.running.features import Features
from tests.cases import random


def random_features(
    width: int, site: str, size: int = 48, activation: FeatureActivation | None = None, **changes: Any
) -> Features:
    """A dictionary with random directions. Its error is large."""
    place = Site.parse(site)
    dictionary = Features(
        random(0, width, size).double(),
        random(1, size).double(),
        random(2, size, width).double(),
        random(3, width).double(),
        TopK(6) if activation is None else activation,
        place,
        place,
    )
    return replace(dictionary, **changes)


def exact_features(directions: Tensor, site: str) -> Features:
    """The dictionary that recovers positive activations of independent directions exactly."""
    place = Site.parse(site)
    zeros = directions.new_zeros
    return Features(
        torch.linalg.pinv(directions),
        zeros(len(directions)),
        directions,
        zeros(directions.shape[-1]),
        ReLU(),
        place,
        place,
    )


def with_points(trace: Any, site: str, points: Tensor) -> Any:
    """The same trace with other points at one step."""
    changed = trace.points.clone()
    changed[Site.parse(site).last_step(trace)] = points
    return replace(trace, points=changed)
