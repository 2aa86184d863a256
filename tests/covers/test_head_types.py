"""Head types: planted heads get their names, scores equal slow counts, the probe is a repetition."""

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
from tests.covers.cases import bare

F64 = torch.float64


def slow(A: np.ndarray, ids: list[int], window: int) -> dict[str, float]:
    """The definitions, read aloud, for a causal map."""
    n = len(ids)
    past = [[j for j in range(i) if ids[j] == ids[i]] for i in range(n)]
    followed = [[j + 1 for j in past[i] if j + 1 < i] for i in range(n)]
    wide = [i for i in range(n) if i + 1 >= 2 * window]
    rows = {
        "previous_token": [A[i, i - 1] for i in range(1, n)],
        "induction": [A[i, followed[i]].sum() for i in range(n) if followed[i]],
        "duplicate_token": [A[i, past[i]].sum() for i in range(n) if past[i]],
        "sink": [A[i, 0] for i in range(1, n)],
        "local": [A[i, max(0, i - window + 1) : i + 1].sum() for i in wide],
        "self_weight": [A[i, i] for i in range(1, len(A))],
        "uniform": [-(A[i, : i + 1] * np.log(A[i, : i + 1])).sum() / np.log(i + 1) for i in wide],
    }
    return {name: float(np.mean(row)) for name, row in rows.items()}


@pytest.mark.parametrize("name", ["gpt2", "llama", "own_alibi"])
def test_scores_equal_slow_counts(name: str) -> None:
    model = double(name)
    ids = torch.cat([text(n=9), text(n=9)])
    ids[13] = ids[12]  # a token that follows itself is no induction
    trace = model.trace(ids)
    found = rs.head_types(model, trace, local_window=3)
    for layer, head in ((0, 1), (1, 3)):
        wanted = slow(trace.weights(layer, head).detach().numpy(), ids.tolist(), 3)
        for field, value in wanted.items():
            assert float(found[field][layer, head]) == pytest.approx(value, abs=1e-9), field
    equal = np.tril(np.ones((18, 18))) / np.arange(1, 19)[:, None]
    for field, value in slow(equal, ids.tolist(), 3).items():
        if field != "uniform":
            assert float(found[f"{field}_null"][0]) == pytest.approx(value), field


def planted(kind: str, n: int = 40) -> torch.Tensor:
    """Weights of a head that does one thing alone, on a sequence repeated after n / 2 tokens."""
    i, A = torch.arange(n), torch.zeros(n, n, dtype=F64)
    to = {
        "previous_token": i - 1,
        "induction": i - n // 2 + 1,
        "duplicate_token": i - n // 2,
        "sink": torch.zeros(n).long(),
        "local": i,
    }.get(kind)
    if to is None:
        return torch.ones(n, n, dtype=F64).tril() / (i + 1)[:, None]
    A[i, torch.where(to < 0, i, to)] = 1
    return A


@pytest.mark.parametrize("kind", ["previous_token", "induction", "duplicate_token", "sink", "local", "uniform"])
def test_planted_heads_get_their_names(kind: str) -> None:
    ids, allowed = torch.arange(20).repeat(2), torch.ones(40, 40, dtype=torch.bool).tril()
    at, found, equal = torch.arange(40), RunningMeans(), RunningMeans()
    kinds = key_masks(ids[None], at, at, allowed[None], 5)
    for means, weights in ((found, planted(kind)), (equal, planted("uniform"))):
        means.add(row_scores(weights[None, None], allowed[None], kinds, 5))
    scores = found.means()
    table = scores | {f"{name}_null": x[0] for name, x in equal.means().items()}
    assert head_type_names(table, 0.4).tolist() == [[kind]]
    assert float(scores[kind]) == pytest.approx(1)


def test_a_model_that_looks_back_is_named_so() -> None:
    """Steep slopes of distance: every head is local; no scores at all: every head is uniform."""
    model = bare(heads=2, position="alibi")
    with torch.no_grad():
        model.view.layer_heads[0].W_Q.zero_()
    steep = replace(model.view.layer_heads[0].mechanism.position, slopes=torch.full((2,), 3.0))
    blocks = tuple(replace(b, mechanism=replace(b.mechanism, position=steep)) for b in model.view.layer_heads)
    near = replace(model, view=replace(model.view, layer_heads=blocks))
    assert set(rs.head_types(near, near.trace(list(range(1, 30)))).type.values.ravel()) == {"local"}
    flat = bare(heads=2)
    with torch.no_grad():
        flat.view.layer_heads[0].W_Q.zero_()
    assert set(rs.head_types(flat).type.values.ravel()) == {"uniform"}


def test_the_probe_is_a_repetition_and_a_text_without_one_has_no_induction() -> None:
    ids = repeated_random_tokens(300, 12, 0)
    assert torch.equal(ids[:12], ids[12:])
    assert len(ids.unique()) == 12
    found = rs.head_types(rs.load(), probe_length=12)
    assert found.attrs["probe"] == "12 random tokens, twice"
    assert not bool(found.induction.isnull().any())
    model: Any = rs.load()
    plain = rs.head_types(model, model.trace(list(range(1, 20))))
    assert bool(plain.induction.isnull().all())
    assert not ({"induction", "duplicate_token"} & set(plain.type.values.ravel()))


@pytest.mark.parametrize("name", ["bert", "mistral", "own_sink"])
def test_scores_are_shares(name: str) -> None:
    model = double(name)
    found = rs.head_types(model, traced(name, F64), local_window=2)
    for field in ("previous_token", "sink", "local", "uniform"):
        assert bool(((found[field] >= 0) & (found[field] <= 1 + 1e-9)).all()), field


def test_what_it_cannot_do_is_told_in_one_line() -> None:
    model = double("gpt2")
    with pytest.raises(rs.RheoscopeError, match=r"got 0.0 and 5; type threshold=0.4"):
        rs.head_types(model, threshold=0.0)
    with pytest.raises(rs.RheoscopeError, match=r"2 to 40 different tokens .* got 64; type probe_length=40"):
        rs.head_types(model, probe_length=64)
    with pytest.raises(rs.RheoscopeError, match=r"this trace comes from weights .*; type model.trace\(text\)"):
        rs.head_types(model, traced("llama", F64))


def test_a_probe_is_as_long_as_the_model_allows() -> None:
    """64 different tokens, or all of a small vocabulary, or half of a small context."""
    for config, tokens in (
        ({"vocabulary": 40, "context": 512}, 40),
        ({"vocabulary": 300, "context": 50}, 25),
        ({}, 64),
    ):
        found = rs.head_types(bare(**config))
        assert found.attrs["probe"] == f"{tokens} random tokens, twice"
