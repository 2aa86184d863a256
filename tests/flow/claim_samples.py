"""Samples of texts for the tests of claims, and planted points."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rheoscope.space.claim import ClaimSample, Measured
from rheoscope.space.traces import Traces
from tests.cases import double
from tests.pretrained.cases import text

LENGTHS = (18, 12, 15)


def texts() -> list[list[int]]:
    """Three random texts of different lengths."""
    return [text(seed, n).tolist() for seed, n in enumerate(LENGTHS)]


def sample_of(model: Any, *batches: list[list[int]]) -> ClaimSample:
    return ClaimSample(model, tuple(model.trace(batch) for batch in batches), draws=0, seed=3)


def planted_sample(name: str, change: Any) -> ClaimSample:
    """Three texts whose points are change(points, traces)."""
    model = double(name)
    traces = model.trace(texts())
    return ClaimSample(model, (replace(traces, points=change(traces.points, traces)),), draws=0, seed=3)


def end_points(traces: Traces) -> list[int]:
    """The indices of the embedding and of the end of every layer."""
    return [*traces.input_steps, len(traces.steps) - 1]


def assert_texts_are_independent(measure: Any, name: str) -> None:
    """Splitting the batch changes no value, and permuting the texts permutes the values."""
    model, (a, b, c) = double(name), texts()
    together, split, permuted = (
        measure(sample_of(model, *batches)) for batches in ([[a, b, c]], [[a], [b, c]], [[c, a, b]])
    )
    for part, measured in together.items():
        for field in ("observed", "reference"):
            values = _field(measured, field)
            if values is not None:
                assert_close(values, _field(split[part], field))
                assert_close(values[[2, 0, 1]], _field(permuted[part], field))


def _field(measured: Measured, field: str) -> Tensor | None:
    return getattr(measured, field)


def assert_close(a: Tensor, b: Tensor | None) -> None:
    assert b is not None
    assert torch.allclose(a.double(), b.double(), atol=1e-5, rtol=0, equal_nan=True), (a, b)
