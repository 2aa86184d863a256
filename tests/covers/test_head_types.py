"""Tests of `head_types`: slow reference scores, planted heads, the random probe and refused settings."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.covers.head_types.analysis import (
    RunningMeans,
    head_type_names,
    key_masks,
    repeated_random_tokens,
    row_scores,
)
from tests.cases import double, text, traced
from tests.covers.cases import random_model

F64 = torch.float64


def slow_scores(A: np.ndarray, ids: list[int], window: int) -> dict[str, float]:
    """The definitions of the scores for causal weights, row by row."""
    n = len(ids)
    copies = [[j for j in range(i) if ids[j] == ids[i]] for i in range(n)]
    successors = [[j + 1 for j in copies[i] if j + 1 < i] for i in range(n)]
    long_rows = [i for i in range(n) if i + 1 >= 2 * window]
    rows = {
        "previous_token": [A[i, i - 1] for i in range(1, n)],
        "induction": [A[i, successors[i]].sum() for i in range(n) if successors[i]],
        "duplicate_token": [A[i, copies[i]].sum() for i in range(n) if copies[i]],
        "sink": [A[i, 0] for i in range(1, n)],
        "local": [A[i, max(0, i - window + 1) : i + 1].sum() for i in long_rows],
        "self_weight": [A[i, i] for i in range(1, len(A))],
        "uniform": [-(A[i, : i + 1] * np.log(A[i, : i + 1])).sum() / np.log(i + 1) for i in long_rows],
    }
    return {name: float(np.mean(row)) for name, row in rows.items()}


@pytest.mark.parametrize("name", ["gpt2", "llama", "own_alibi"])
def test_scores_equal_the_slow_reference(name: str) -> None:
    model = double(name)
    ids = torch.cat([text(n=9), text(n=9)])
    ids[13] = ids[12]  # a token right after its own copy is not induction
    trace = model.trace(ids)
    result = rs.head_types(model, trace, local_window=3)
    for layer, head in ((0, 1), (1, 3)):
        expected = slow_scores(trace.weights(layer, head).detach().numpy(), ids.tolist(), 3)
        for field, value in expected.items():
            assert float(result[field][layer, head]) == pytest.approx(value, abs=1e-9), field
    uniform_weights = np.tril(np.ones((18, 18))) / np.arange(1, 19)[:, None]
    for field, value in slow_scores(uniform_weights, ids.tolist(), 3).items():
        if field != "uniform":
            assert float(result[f"{field}_null"][0]) == pytest.approx(value), field


def planted_weights(kind: str, n: int = 40) -> torch.Tensor:
    """Weights of a head of one type, on a sequence that repeats after n / 2 tokens."""
    i, A = torch.arange(n), torch.zeros(n, n, dtype=F64)
    attended = {
        "previous_token": i - 1,
        "induction": i - n // 2 + 1,
        "duplicate_token": i - n // 2,
        "sink": torch.zeros(n).long(),
        "local": i,
    }.get(kind)
    if attended is None:
        return torch.ones(n, n, dtype=F64).tril() / (i + 1)[:, None]
    A[i, torch.where(attended < 0, i, attended)] = 1
    return A


@pytest.mark.parametrize("kind", ["previous_token", "induction", "duplicate_token", "sink", "local", "uniform"])
def test_planted_heads_get_their_type(kind: str) -> None:
    ids, allowed = torch.arange(20).repeat(2), torch.ones(40, 40, dtype=torch.bool).tril()
    positions, head_means, uniform_means = torch.arange(40), RunningMeans(), RunningMeans()
    masks = key_masks(ids[None], positions, positions, allowed[None], 5)
    for means, weights in ((head_means, planted_weights(kind)), (uniform_means, planted_weights("uniform"))):
        means.add(row_scores(weights[None, None], allowed[None], masks, 5))
    scores = head_means.means()
    table = scores | {f"{name}_null": x[0] for name, x in uniform_means.means().items()}
    assert head_type_names(table, 0.4).tolist() == [[kind]]
    assert float(scores[kind]) == pytest.approx(1)


def test_steep_alibi_slopes_make_local_heads_and_zero_queries_make_uniform_heads() -> None:
    model = random_model(heads=2, position="alibi")
    with torch.no_grad():
        model.view.layer_heads[0].W_Q.zero_()
    steep = replace(model.view.layer_heads[0].mechanism.position, slopes=torch.full((2,), 3.0))
    blocks = tuple(replace(b, mechanism=replace(b.mechanism, position=steep)) for b in model.view.layer_heads)
    local_model = replace(model, view=replace(model.view, layer_heads=blocks))
    result = rs.head_types(local_model, local_model.trace(list(range(1, 30))))
    assert set(result.type.values.ravel()) == {"local"}
    uniform_model = random_model(heads=2)
    with torch.no_grad():
        uniform_model.view.layer_heads[0].W_Q.zero_()
    assert set(rs.head_types(uniform_model).type.values.ravel()) == {"uniform"}


def test_the_probe_repeats_its_tokens_and_a_text_without_repetition_has_no_induction() -> None:
    ids = repeated_random_tokens(300, 12, 0)
    assert torch.equal(ids[:12], ids[12:])
    assert len(ids.unique()) == 12
    model: Any = rs.load()
    result = rs.head_types(model, probe_length=12)
    assert result.attrs["probe"] == "12 random tokens, repeated once"
    assert not bool(result.induction.isnull().any())
    unrepeated = rs.head_types(model, model.trace(list(range(1, 20))))
    assert bool(unrepeated.induction.isnull().all())
    assert not ({"induction", "duplicate_token"} & set(unrepeated.type.values.ravel()))


@pytest.mark.parametrize("name", ["bert", "mistral", "own_sink"])
def test_scores_lie_between_0_and_1(name: str) -> None:
    result = rs.head_types(double(name), traced(name, F64), local_window=2)
    for field in ("previous_token", "sink", "local", "uniform"):
        assert bool(((result[field] >= 0) & (result[field] <= 1 + 1e-9)).all()), field


def test_invalid_settings_and_traces_of_other_weights_are_refused() -> None:
    model = double("gpt2")
    with pytest.raises(rs.RheoscopeError, match=r"threshold must be greater than 0, got 0.0; type threshold=0.4"):
        rs.head_types(model, threshold=0.0)
    with pytest.raises(rs.RheoscopeError, match=r"local_window must lie between 1 and 10,000, got 0"):
        rs.head_types(model, local_window=0)
    with pytest.raises(rs.RheoscopeError, match=r"between 2 and 40 .* got 64; type probe_length=40"):
        rs.head_types(model, probe_length=64)
    with pytest.raises(rs.RheoscopeError, match=r"this trace comes from weights .*; type model.trace\(text\)"):
        rs.head_types(model, traced("llama", F64))


def test_the_default_probe_fits_the_vocabulary_and_the_context() -> None:
    """64 distinct tokens, or a small vocabulary's size, or half of a small context."""
    for config, n_tokens in (
        ({"vocabulary": 40, "context": 512}, 40),
        ({"vocabulary": 300, "context": 50}, 25),
        ({}, 64),
    ):
        result = rs.head_types(random_model(**config))
        assert result.attrs["probe"] == f"{n_tokens} random tokens, repeated once"
