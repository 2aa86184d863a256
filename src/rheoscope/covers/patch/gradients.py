"""Gradients of the metric in the base run of a patch: with respect to points of the stream and to the outputs of heads."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.covers.patch.patched_runs import PatchedRuns
from rheoscope.space.model import LayerEdit
from rheoscope.space.safe_arithmetic import at_least_float32


@dataclass(frozen=True, eq=False)
class MetricGradients:
    """The gradient of the sum of the metric over pairs, at every step that the model reads and in every layer's heads."""

    points: dict[str, Float[Tensor, "p n d"]]
    outputs: list[Float[Tensor, "p h n e"]]


def metric_gradients(runs: PatchedRuns) -> MetricGradients:
    """All gradients, from one forward and one backward pass. Weights get none."""
    steps = [str(step) for step in runs.base.steps if step not in runs.base.unread_steps]
    points = {step: torch.zeros_like(at_least_float32(runs.base.points_at(0)), requires_grad=True) for step in steps}
    outputs = [
        torch.zeros_like(runs.head_outputs(layer, ""), requires_grad=True) for layer in range(runs.base.view.layers)
    ]
    with torch.enable_grad():
        edits: dict[int, Any] = {layer: _add_to_outputs(zeros) for layer, zeros in enumerate(outputs)}
        hooks = {step: partial(torch.add, zeros) for step, zeros in points.items()}
        logits = runs.model.run_batch(runs.base.ids, edit=edits, hooks=hooks)[:, runs.token]
        total = runs.measure(logits.double().log_softmax(-1)[None])[0].sum()
        gradients = torch.autograd.grad(total, [*points.values(), *outputs], materialize_grads=True)
    return MetricGradients(dict(zip(steps, gradients, strict=False)), list(gradients[len(steps) :]))


def output_gradients(runs: PatchedRuns) -> list[Float[Tensor, "p h n e"]]:
    """The gradient with respect to the outputs of the heads of every layer."""
    return metric_gradients(runs).outputs


def _add_to_outputs(zeros: Float[Tensor, "p h n e"]) -> LayerEdit:
    """An edit that changes nothing, but lets gradients with respect to the outputs be taken."""

    def edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        return out + zeros

    return edit
