"""Samples of claims for tests: three short texts in small random models, in one batch or in several."""

from typing import Any

import torch

from rheoscope.space.claim import ClaimSample, Measured
from tests.pretrained.cases import text

LENGTHS = (18, 13, 16)


def texts() -> list[Any]:
    return [text(seed, n) for seed, n in enumerate(LENGTHS)]


def sample(model: Any, order: tuple[int, ...] = (0, 1, 2), split: bool = False, draws: int = 2) -> ClaimSample:
    """The texts in some order, as one batch or one by one."""
    ordered = [texts()[index] for index in order]
    batches = tuple(model.trace([ids]) for ids in ordered) if split else (model.trace(ordered),)
    return ClaimSample(model, batches, draws, seed=3)


def check_shared_draws(measure: Any, model: Any) -> None:
    """Splitting the batch changes nothing, and permuting texts permutes columns."""
    ((name, together),) = measure(sample(model)).items()
    split, permuted = (
        measure(changed)[name] for changed in (sample(model, split=True), sample(model, order=(2, 0, 1)))
    )
    for field in ("observed", "draws"):
        values = getattr(together, field)
        assert torch.allclose(values, getattr(split, field), atol=1e-6)
        assert torch.allclose(values[..., [2, 0, 1]], getattr(permuted, field), atol=1e-6)


def check_values(measured: Measured, observed: list[float], draws: list[list[float]]) -> None:
    """The values of a slow twin, text by text and draw by draw."""
    assert torch.allclose(measured.observed.double(), torch.tensor(observed).double(), atol=1e-5)
    assert measured.draws is not None
    assert torch.allclose(measured.draws.double(), torch.tensor(draws).double(), atol=1e-5)
