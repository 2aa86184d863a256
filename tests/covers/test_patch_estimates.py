"""Tests of `patch_estimates`: exact where the metric is linear, sums over tokens, and the exact effects of the sample."""

from typing import Any

import numpy as np
import pytest
import torch

import rheoscope as rs
from tests.cases import default, double, text

CLEAN, CORRUPT = text().tolist(), text(1).tolist()


@pytest.mark.parametrize("name", ["llama", "neox"])
def test_the_sample_equals_patch_and_tokens_sum_to_heads(name: str) -> None:
    model = double(name)
    trace = model.trace(CLEAN)
    result, exact = rs.patch_estimates(model, trace, CORRUPT, sample=2), rs.patch(model, trace, CORRUPT, top=1000)
    steps, heads = result.sampled_step.values.tolist(), result.sampled_head.values.tolist()
    assert result.exact_stream.values == pytest.approx(exact.stream.sel(step=steps).values, abs=1e-9)
    assert result.exact_head_token.values == pytest.approx(exact.head_token.sel(strong_head=heads).values, abs=1e-9)
    assert result.head_token.sum("token").values == pytest.approx(result.output.values)
    estimated = result.head_token.values.reshape(2, -1, len(CLEAN))[:, [_index(head, model) for head in heads]]
    assert float(result.head_error) == pytest.approx(np.abs(estimated - result.exact_head_token.values).max())


def _index(head: str, model: Any) -> int:
    layer, number = head.removeprefix("L").split(".H")
    return int(layer) * model.view.heads + int(number)


@torch.no_grad()
def test_estimates_are_derivatives() -> None:
    """A hook that adds a small part of the difference moves the metric by the same part of the estimate."""
    model, share = double("own_alibi"), 1e-5
    clean, corrupt = model.trace(CLEAN), model.trace(CORRUPT)
    result = rs.patch_estimates(model, clean, CORRUPT, metric="loss", sample=1)
    answer, step, token = int(model.run(CLEAN)[-1].argmax()), "L0.resid_mid", 5
    difference = clean.points_at(step)[token] - corrupt.points_at(step)[token]

    def loss(scale: float) -> float:
        def add(x: torch.Tensor) -> torch.Tensor:
            changed = x.clone()
            changed[:, token] += scale * difference
            return changed

        return float(-model.run(CORRUPT, hooks={step: add})[-1].log_softmax(-1)[answer])

    slope = (loss(share) - loss(-share)) / (2 * share)
    total = float(-model.run(CLEAN)[-1].log_softmax(-1)[answer]) - loss(0)
    assert float(result.stream.sel(direction="restore", step=step)[token]) == pytest.approx(slope / total, rel=1e-5)


def test_the_default_model_has_small_errors() -> None:
    trace = default().trace("The men who live here")
    result = rs.patch_estimates(default(), trace, "The man who live here", answers=" are| is", sample=24)
    assert float(result.head_correlation) > 0.9
    assert float(result.output.sel(direction="restore", layer=5, head=1)) > 0.5
