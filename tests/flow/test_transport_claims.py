"""The claims of transport: loops with scipy, independence of texts, planted couplings and random ones."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import rheoscope as rs
from rheoscope.flow.transport.claims import (
    MIN_PAIRS,
    PERMUTATIONS,
    measure_identity,
    measure_next_token,
    next_token_facts,
    next_token_notes,
)
from rheoscope.flow.transport.next_token import is_tied
from rheoscope.shapes import RheoscopeError
from rheoscope.space.traces import Traces
from rheoscope.statistics.nulls import random_permutations
from tests.cases import double
from tests.flow.claim_samples import (
    LENGTHS,
    assert_close,
    assert_texts_are_independent,
    end_points,
    planted_sample,
    sample_of,
    texts,
)
from tests.pretrained.cases import random


def partners(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The optimal coupling of centred directions."""
    a, b = (cloud - cloud.mean(0) for cloud in (x, y))
    a, b = (cloud / np.linalg.norm(cloud, axis=1, keepdims=True) for cloud in (a, b))
    cost = np.array([[np.sum((u - v) ** 2) for v in b] for u in a])
    return linear_sum_assignment(cost)[1]


def clouds(trace: Any) -> tuple[list[np.ndarray], list[int]]:
    retained = [i for i in range(len(trace)) if i not in trace.massive_tokens()]
    indices = [*trace.input_steps, len(trace.steps) - 1]
    return [trace.points[index, retained].double().numpy() for index in indices], retained


def slow_identity(trace: Any, seed: int) -> tuple[float, float]:
    def share(x: np.ndarray, y: np.ndarray) -> float:
        closest = 1e-6 * max(np.linalg.norm(point) for point in x)
        return np.mean([np.linalg.norm(x[j] - x[i]) <= closest for i, j in enumerate(partners(x, y))])

    layers, retained = clouds(trace)
    orders = random_permutations(len(retained), PERMUTATIONS, seed).numpy()
    pairs = list(pairwise(layers))
    observed = np.mean([share(x, y) for x, y in pairs])
    return observed, np.mean([[share(x, x + (y - x)[order]) for order in orders] for x, y in pairs])


def slow_next_token(trace: Any, logits: Tensor) -> tuple[list[float], list[float]]:
    layers, retained = clouds(trace)
    partner, ids = partners(layers[0], layers[-1]), trace.ids.tolist()
    followed = [(i, retained[j]) for i, j in zip(retained, partner, strict=True) if retained[j] + 1 < len(ids)]
    wrong = [(i, j) for i, j in followed if int(logits[j].argmax()) != ids[j + 1]]
    means = []
    for pairs, tokens in ((followed, retained), (wrong, [i for i, _ in wrong])):
        observed = np.mean([ids[j + 1] == ids[i] for i, j in pairs])
        means.append([observed, np.mean([ids[j + 1] == ids[i] for i in tokens for _, j in pairs])])
    return means[0], means[1] if len(wrong) >= MIN_PAIRS else [np.nan, np.nan]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_identity_equals_a_loop(name: str) -> None:
    sample = sample_of(double(name), texts())
    measured = measure_identity(sample)["identity"]
    expected = torch.tensor([slow_identity(trace, sample.seed) for trace in sample.batches[0]])
    assert_close(measured.observed, expected[:, 0])
    assert_close(measured.reference, expected[:, 1])


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_next_token_equals_a_loop(name: str) -> None:
    model = double(name)
    measured = measure_next_token(sample_of(model, texts()))
    traces = model.trace(texts(), logits=True)
    expected = torch.tensor([slow_next_token(trace, trace.logits) for trace in traces])
    for index, part in enumerate(("share", "beyond_predictions")):
        assert_close(measured[part].observed, expected[:, index, 0])
        assert_close(measured[part].reference, expected[:, index, 1])


@pytest.mark.parametrize(("name", "tied"), [("gpt2", 1.0), ("own", 0.0)])
def test_facts_of_the_model_equal_a_loop(name: str, tied: float) -> None:
    """Tied or untied embeddings, and the mean over texts of the accuracy of top predictions."""
    model = double(name)
    accuracies = []
    for trace in model.trace(texts(), logits=True):
        ids, (_, retained) = trace.ids.tolist(), clouds(trace)
        accuracies.append(
            np.mean([int(trace.logits[i].argmax()) == ids[i + 1] for i in retained if i + 1 < len(trace)])
        )
    facts = next_token_facts(sample_of(model, texts()))
    assert facts == {"tied": tied, "accuracy": pytest.approx(np.mean(accuracies))}
    (note,) = next_token_notes(facts | {"share": 0.38, "beyond_predictions": 0.21})
    condition = "tied embeddings" if tied else "untied embeddings"
    assert note.startswith(f"With {condition}: 38 % of all tokens, 21 % where the prediction is wrong")


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_transport_has_the_shares_of_the_claim(name: str) -> None:
    measured, model = measure_next_token(sample_of(double(name), texts())), double(name)
    for index, text in enumerate(texts()):
        result = rs.transport(model.trace(text), draws=2, step_draws=0)
        part = measured["beyond_predictions"]
        if not torch.isnan(part.observed[index]):
            assert float(result.next_type_share_mispredicted) == pytest.approx(float(part.observed[index]))
            assert float(result.next_type_share_mispredicted_null) == pytest.approx(float(part.reference[index]))
    assert 0 <= float(result.next_token_accuracy) <= 1
    assert result.attrs["tied_embedding"] == int(is_tied(model.view))


@pytest.mark.parametrize("measure", [measure_identity, measure_next_token])
def test_texts_do_not_depend_on_each_other(measure: Any) -> None:
    assert_texts_are_independent(measure, "llama")


def test_growing_clouds_keep_identity_more_than_random_walks() -> None:
    def grow(points: Tensor, traces: Traces) -> Tensor:
        factors = torch.ones(points.shape[1]).double()
        factors[end_points(traces)] = 3.0 ** torch.arange(len(end_points(traces))).double()
        return factors[:, None, None] * random(0, *points.shape)[:, :1]

    grown = measure_identity(planted_sample("llama", grow))["identity"]
    assert (grown.observed == 1).all()
    assert float(grown.effects.min()) > 0.5
    # displacements that do not depend on the point
    walk = measure_identity(planted_sample("llama", lambda x, _: (random(0, *x.shape) * 2).cumsum(1)))["identity"]
    assert abs(float(walk.effects.mean())) < 0.1


def test_points_at_the_next_token_are_found_and_random_points_are_not() -> None:
    def move(points: Tensor, traces: Traces) -> Tensor:
        table = random(0, 64, points.shape[-1])
        shifted = random(1, *points.shape)
        shifted[:, 0], shifted[:, -1, :-1] = table[traces.ids], table[traces.ids[:, 1:]]
        return shifted

    for measured in measure_next_token(planted_sample("llama", move)).values():
        assert float(measured.effects.min()) > 0.7
    for measured in measure_next_token(planted_sample("llama", lambda x, _: random(2, *x.shape))).values():
        assert abs(float(measured.effects.mean())) < 0.1


def test_few_wrong_predictions_have_no_value_and_encoders_are_refused() -> None:
    model = double("llama")
    short = measure_next_token(sample_of(model, [texts()[0][:MIN_PAIRS], texts()[1]]))["beyond_predictions"]
    assert short.observed.isnan().tolist() == [True, False]  # 8 tokens have at most 7 partners with a next token
    assert len(measure_identity(sample_of(double("bert"), texts()))["identity"].observed) == len(LENGTHS)
    with pytest.raises(RheoscopeError, match="expected a causal model"):
        measure_next_token(sample_of(double("bert"), texts()))
