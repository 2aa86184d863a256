"""Tests of the claims about distances in the images of heads: slow twins, shared draws and planted heads."""

import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist
from scipy.stats import spearmanr

from rheoscope.covers import distance_recovery
from rheoscope.covers.distance_recovery import TEXTS_PER_GROUP, images_from_cpu
from rheoscope.covers.distortion.analysis import IMAGES
from rheoscope.covers.distortion.claims import measure as deformation
from rheoscope.covers.operator_images import OperatorImage
from rheoscope.covers.stack.claims import measure as recovery
from rheoscope.space.claim import ClaimSample, Measured
from rheoscope.space.head import Heads
from rheoscope.space.layer_rotations import layer_rotations
from tests.cases import double
from tests.covers.cases import random_model
from tests.covers.claim_cases import check_shared_draws, check_values, sample
from tests.pretrained.cases import random

F64, CPU = torch.float64, torch.device("cpu")


def layer_images(trace: Any, layer: int, Q: torch.Tensor) -> tuple[np.ndarray, list[list[np.ndarray]]]:
    """x̂ without massive tokens, and the three images x̂QM, x̂QMᵀ and x̂QF of every head, from dense operators."""
    rows = [row for row in range(len(trace)) if row not in trace.massive_tokens()]
    x = trace.view.layer_heads[layer].norm.normalise(trace.layer_input(layer))[rows].detach()
    heads = [trace.view.head(layer, head) for head in range(trace.view.heads)]
    operators = [
        [head.M.dense() for head in heads],
        [head.M.dense().mT for head in heads],
        [head.F.dense() for head in heads],
    ]
    return x.numpy(), [[(x @ Q @ A.detach()).numpy() for A in kind] for kind in operators]


def slow_deformation(x: np.ndarray, images: list[list[np.ndarray]]) -> float:
    return -float(np.mean([spearmanr(pdist(y), pdist(x)).statistic for kind in images for y in kind]))


def slow_recovery(x: np.ndarray, images: list[list[np.ndarray]]) -> float:
    return float(np.mean([spearmanr(pdist(np.concatenate(kind, -1)), pdist(x)).statistic for kind in images]))


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize(("measure", "slow"), [(deformation, slow_deformation), (recovery, slow_recovery)])
def test_values_equal_a_slow_twin_with_dense_operators(name: str, measure: Any, slow: Any) -> None:
    claim_sample = sample(double(name))
    ((_, measured),) = measure(claim_sample).items()
    view, traces = claim_sample.model.view, list(claim_sample.batches[0])
    eye = torch.eye(view.width, dtype=F64)
    rotations = [Q.double() for Q in layer_rotations(view, 2, torch.Generator().manual_seed(3), CPU)]

    def value(trace: Any, draw: int | None) -> float:
        layers = range(view.layers)
        return float(
            np.mean([slow(*layer_images(trace, n, eye if draw is None else rotations[n][draw])) for n in layers])
        )

    check_values(
        measured,
        [value(trace, None) for trace in traces],
        [[value(trace, draw) for trace in traces] for draw in range(2)],
    )


@pytest.mark.parametrize("measure", [deformation, recovery])
def test_texts_of_different_length_are_compared_together_on_a_gpu(
    measure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU compares many texts at once, with padding. The numbers are those of single texts, and too short texts have none."""
    model = double("gpt2")
    texts = [list(range(5, 5 + n)) for n in (9, 2, 12, 5, 7)]
    claim_sample = ClaimSample(model, (model.trace(texts),), 2, 3)
    ((_, alone),) = measure(claim_sample).items()
    monkeypatch.setitem(TEXTS_PER_GROUP, "cpu", 3)
    ((_, together),) = measure(claim_sample).items()
    assert alone.observed.isnan().tolist() == [False, True, False, False, False]
    assert alone.draws is not None
    assert together.draws is not None
    assert torch.allclose(alone.observed, together.observed, atol=1e-9, equal_nan=True)
    assert torch.allclose(alone.draws, together.draws, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("measure", [deformation, recovery])
def test_all_texts_share_the_rotated_heads(measure: Any) -> None:
    check_shared_draws(measure, double("gpt2"))


@pytest.mark.parametrize("measure", [deformation, recovery])
def test_images_of_two_layers_exist_at_once(measure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of all layers in float64 are larger than the weights. Two exist while those of the next layer are computed."""
    images: list[weakref.ref[OperatorImage]] = []
    n_alive: list[int] = []

    def decompose(heads: Heads) -> list[OperatorImage]:
        result = images_from_cpu(heads)
        images.extend(weakref.ref(image) for image in result)
        n_alive.append(sum(image() is not None for image in images))
        return result

    monkeypatch.setattr(distance_recovery, "images_from_cpu", decompose)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    model = random_model(depth=5)
    batches = tuple(model.trace([list(range(1, 2 + n))]) for n in (6, 9))
    measure(ClaimSample(model, batches, 2))
    assert len(n_alive) == 5  # once per layer, for all batches
    assert max(n_alive) <= 2 * len(IMAGES)


def test_rotations_stay_among_centred_vectors_under_layer_norm() -> None:
    """Rotated heads keep their singular values: the rotation is orthogonal on what the norm passes on."""
    for name, projection in (("gpt2", torch.eye(32) - 1 / 32), ("llama", torch.eye(32))):
        for Q in layer_rotations(double(name).view, 2, torch.Generator().manual_seed(0), CPU):
            assert torch.allclose(Q @ Q.mT, projection.expand_as(Q), atol=1e-5)
            assert torch.allclose(Q.mT @ Q, projection.expand_as(Q), atol=1e-5)


@torch.no_grad()
def planted_sample(read: torch.Tensor, cloud: torch.Tensor) -> ClaimSample:
    """Two heads in a space of 12 dimensions, which read these columns as queries, keys and contents."""
    model = random_model(heads=2, width=12, head_width=6)
    heads = model.view.layer_heads[0]
    for head in range(2):
        for W in (heads.W_Q, heads.W_K, heads.W_V):
            W[head].copy_(read[head])
        heads.W_O[head].copy_(read[head].mT)
    traces = model.trace([list(range(1, len(cloud) + 1))] * 2)
    points = cloud.to(traces.points).expand(*traces.points.shape).clone()
    return ClaimSample(model, (replace(traces, points=points),), 40)


def effect(measured: dict[str, Measured]) -> float:
    ((_, values),) = measured.items()
    return float(values.effects.mean())


@pytest.mark.parametrize("is_planted", [True, False])
def test_heads_that_read_the_quiet_axes_deform_and_those_that_read_all_axes_recover(is_planted: bool) -> None:
    """Half of the axes carry most of the variance. Planted heads read the other half, or one half each."""
    cloud = random(0, 40, 12) * torch.tensor([3.0] * 6 + [0.3] * 6)
    eye, turn = torch.eye(12, dtype=F64), torch.linalg.qr(random(1, 12, 12)).Q
    quiet, halves = (eye[:, 6:], eye[:, 6:]), (eye[:, :6], eye[:, 6:])
    if is_planted:
        assert effect(deformation(planted_sample(torch.stack(quiet), cloud))) > 0.3
        assert effect(recovery(planted_sample(torch.stack((eye[:, :6], eye[:, :6])), cloud))) > 0.1
        complete = recovery(planted_sample(torch.stack(halves), cloud))["recovery"]
        assert complete.observed.tolist() == pytest.approx([1, 1])
    else:
        read = turn @ torch.stack(halves)
        isotropic = random(2, 40, 12)
        assert abs(effect(deformation(planted_sample(read, isotropic)))) < 0.1
        assert abs(effect(recovery(planted_sample(read[[0, 0]], isotropic)))) < 0.1


def test_a_text_with_too_few_tokens_has_no_value() -> None:
    model = double("llama")
    short = ClaimSample(model, (model.trace([[5, 6, 7], list(range(3, 15))]),), 2)
    measured = recovery(short)["recovery"]
    assert measured.observed.isnan().tolist() == [True, False]
