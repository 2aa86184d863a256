"""Tests of the claims about head updates (erasure and energy): slow twins, shared draws and planted updates."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from rheoscope.flow.energy.claims import measure as gradient
from rheoscope.flow.geometry_kept.claims import measure as erasure
from rheoscope.space.claim import ClaimSample
from rheoscope.space.layer_rotations import layer_rotations
from rheoscope.statistics.nulls import random_rotations
from tests.cases import double
from tests.covers.cases import random_model
from tests.covers.claim_cases import check_shared_draws, check_values, sample
from tests.pretrained.cases import random

F64, CPU = torch.float64, torch.device("cpu")


def ordinary_rows(trace: Any) -> list[int]:
    return [row for row in range(len(trace)) if row not in trace.massive_tokens()]


@torch.no_grad()
def head_update(trace: Any, layer: int, head: int, Q: Tensor) -> Tensor:
    """Σ_j α_ij x̂_j Q F of one head, from its weights and its dense operator."""
    heads, x = trace.view.layer_heads[layer], trace.layer_input(layer)
    return heads.all_weights(x)[head] @ heads.norm.normalise(x) @ Q @ trace.view.head(layer, head).F.dense()


def slow_erasure(trace: Any, rotation: Tensor) -> float:
    eye, shares = torch.eye(trace.view.width, dtype=F64), []
    for layer in range(trace.view.layers):
        product = size = 0.0
        later = trace.points[-1] - trace.points[trace.mid_steps[layer]]
        for head in range(trace.view.heads):
            update = head_update(trace, layer, head, eye) @ rotation
            for row in ordinary_rows(trace):
                product += float(update[row] @ later[row])
                size += float(update[row] @ update[row])
        shares.append(-product / size)
    return sum(shares) / len(shares)


def energy_gradient(trace: Any, layer: int, head: int) -> Tensor:
    """The gradient of Σ_i log Σ_{j ≤ i} e^{s_ij} with respect to x̂_i as a query, by autograd."""
    heads, x = trace.view.layer_heads[layer], trace.layer_input(layer)
    norm, positions = heads.norm, torch.arange(len(x))
    x_hat = norm.normalise(x).detach().requires_grad_()

    def read(points: Tensor) -> Any:
        return heads.project((points * norm.gain + (0 if norm.bias is None else norm.bias))[None])

    q, k = read(x_hat)[0][0, head], read(x_hat)[1][0, heads.kv_head(head)].detach()
    if not heads.mechanism.position.changes_tokens:  # softmax ignores a constant part of the keys
        k = k - read(torch.zeros_like(x_hat))[1][0, heads.kv_head(head)].detach()
    q, k = (heads.mechanism.position.encode(y[None, None], positions)[0, 0] for y in (q, k))
    scores = (q @ k.mT * heads.scale).masked_fill(~torch.ones(len(x), len(x)).tril().bool(), -torch.inf)
    return norm.centre(torch.autograd.grad(scores.logsumexp(-1).sum(), x_hat)[0])


def slow_gradient(trace: Any, rotations: list[Tensor]) -> float:
    cosines = []
    for layer in range(trace.view.layers):
        for head in range(trace.view.heads):
            rows = ordinary_rows(trace)
            update = head_update(trace, layer, head, rotations[layer])[rows].flatten()
            slope = energy_gradient(trace, layer, head)[rows].flatten()
            cosines.append(float(update @ slope / (update.norm() * slope.norm())))
    return sum(cosines) / len(cosines)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_erased_shares_equal_a_slow_twin(name: str) -> None:
    claim_sample = sample(double(name))
    traces, width = list(claim_sample.batches[0]), claim_sample.model.view.width
    rotations = random_rotations(2, width, Generator().manual_seed(3)).double()
    check_values(
        erasure(claim_sample)["erasure"],
        [slow_erasure(trace, torch.eye(width, dtype=F64)) for trace in traces],
        [[slow_erasure(trace, Q) for trace in traces] for Q in rotations],
    )


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_gradient_cosines_equal_a_slow_twin_with_autograd(name: str) -> None:
    claim_sample = sample(double(name))
    traces, view = list(claim_sample.batches[0]), claim_sample.model.view
    rotations = [Q.double() for Q in layer_rotations(view, 2, torch.Generator().manual_seed(3), CPU)]
    eye = [torch.eye(view.width, dtype=F64)] * view.layers
    check_values(
        gradient(claim_sample)["gradient"],
        [slow_gradient(trace, eye) for trace in traces],
        [[slow_gradient(trace, [Q[draw] for Q in rotations]) for trace in traces] for draw in range(2)],
    )


@pytest.mark.parametrize("measure", [erasure, gradient])
@pytest.mark.parametrize("name", ["gpt2", "gemma3"])
def test_all_texts_share_the_draws(measure: Any, name: str) -> None:
    check_shared_draws(measure, double(name))


def model_sample(model: Any, seed: int = 0) -> ClaimSample:
    ids = torch.randint(1, 300, (4, 30), generator=Generator().manual_seed(seed))
    return ClaimSample(model, (model.trace(list(ids)),), 40)


@pytest.mark.parametrize(("share", "noise"), [(0.5, 0.0), (0.0, 0.3)])
def test_a_later_step_that_removes_half_of_the_update_has_a_share_of_one_half(share: float, noise: float) -> None:
    planted = model_sample(random_model(heads=2, depth=1))
    (traces,) = planted.batches
    update = traces.factored_displacements(0)
    total, points = update.total() - update.constants, traces.points.clone()
    sizes = update.squared_norms.sum((-2, -1)) / total.square().sum((-2, -1))
    points[:, -1] = points[:, traces.mid_steps[0]] - share * sizes[:, None, None] * total
    points[:, -1] += noise * total.square().mean().sqrt() * random(5, *total.shape)
    measured = erasure(replace(planted, batches=(replace(traces, points=points),)))["erasure"]
    assert measured.observed.mean().item() == pytest.approx(share, abs=0.05)
    assert abs(measured.effects.mean().item() - share) < 0.1


def test_updates_along_the_gradient_have_cosine_one_and_random_heads_about_zero() -> None:
    model = random_model(heads=4, depth=2, width=32)
    measured = gradient(model_sample(model))["gradient"]
    draws = measured.draw_means
    assert draws is not None
    assert abs(measured.effects.mean()) < 4 * draws.std()
    with torch.no_grad():
        for heads in model.view.layer_heads:
            heads.W_V.copy_(heads.W_K)
            heads.W_O.copy_(heads.W_Q.mT)
    measured = gradient(model_sample(model))["gradient"]
    assert measured.observed.tolist() == pytest.approx([1] * 4)
    assert measured.effects.mean() > 0.8
