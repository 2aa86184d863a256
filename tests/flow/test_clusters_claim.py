"""The claim that directions shrink: singular values of each text, independence of texts, planted ranks."""

import numpy as np
import pytest
import torch
from torch import Tensor

from rheoscope.flow.clusters.claims import measure
from tests.cases import double
from tests.flow.claim_samples import assert_close, assert_texts_are_independent, planted_sample, sample_of, texts
from tests.pretrained.cases import random


def slow_log_rank(cloud: np.ndarray) -> float:
    squares = np.linalg.svd(cloud - cloud.mean(0), compute_uv=False) ** 2
    shares = squares[squares > 1e-20 * squares.max()] / squares.sum()
    return -np.sum(shares * np.log(shares))


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_claim_equals_singular_values_of_each_text(name: str) -> None:
    sample = sample_of(double(name), texts())
    expected = []
    for trace in sample.batches[0]:
        retained = [i for i in range(len(trace)) if i not in trace.massive_tokens()]
        first, last = (trace.points[index, retained].numpy() for index in (0, -1))
        expected.append(slow_log_rank(first) - slow_log_rank(last))
    assert_close(measure(sample)["directions"].effects, torch.tensor(expected))


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_texts_do_not_depend_on_each_other(name: str) -> None:
    assert_texts_are_independent(measure, name)


def test_a_planted_loss_of_directions_is_found() -> None:
    def flatten(points: Tensor, _: object) -> Tensor:
        flat = random(0, *points.shape)
        flat[:, -1, :, 2:] = 0
        return flat

    assert float(measure(planted_sample("llama", flatten))["directions"].effects.min()) > 1
    random_points = measure(planted_sample("llama", lambda x, _: random(0, *x.shape)))["directions"]
    assert float(random_points.effects.abs().max()) < 0.15


def test_texts_of_two_tokens_and_of_equal_points_have_no_value() -> None:
    short = measure(sample_of(double("llama"), [texts()[0][:2], texts()[1]]))["directions"].observed
    assert short.isnan().tolist() == [True, False]
    assert measure(planted_sample("llama", lambda x, _: torch.ones_like(x)))["directions"].observed.isnan().all()
