"""Tests of `prefix_stability`: a slow reference, layer 0, position-only heads, random prefixes and refused input."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

import rheoscope as rs
from rheoscope.covers.prefix_stability import analysis as prefix_stability_module
from rheoscope.covers.prefix_stability.analysis import common_suffix_length
from tests.cases import double, text
from tests.covers.cases import random_model

F64 = torch.float64
PREFIXES = [[5, 9, 30], [21, 22, 8, 8, 11, 4]]


def slow_stability(
    plain: Any, prefixed: Any, layer: int, head: int, min_keys: int, shift: int, dropped: set[int]
) -> float:
    """The definition, query by query. Positions count from the start of the text."""
    n, prefix = len(plain), len(prefixed) - len(plain)
    a, b = plain.scores(layer, head).numpy(), prefixed.scores(layer, head).numpy()
    positions = torch.arange(n + prefix)
    permitted = plain.view.layer_heads[layer].mechanism.mask(positions, positions)
    usable = {i for i in range(n) if i not in dropped}
    correlations = []
    for i in range(n - shift):
        pairs = [
            j
            for j in range(n - shift)
            if j != i
            and permitted[i, j]
            and permitted[i + shift + prefix, j + shift + prefix]
            and {i, j, i + shift, j + shift} <= usable
        ]
        if len(pairs) >= min_keys:
            prefixed_scores = b[i + shift + prefix, [j + shift + prefix for j in pairs]]
            correlations.append(spearmanr(a[i, pairs], prefixed_scores).statistic)
    return float(np.mean(correlations)) if correlations else float("nan")


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox", "gemma3_capped", "qwen3", "bert", "own_alibi", "own_metric"])
def test_stability_equals_the_slow_reference(name: str) -> None:
    model = double(name)
    plain, prefixed_traces = model.trace(text()), [model.trace([*prefix, *text().tolist()]) for prefix in PREFIXES]
    result = rs.prefix_stability(model, text(), PREFIXES, min_keys=4, keep_massive=True)
    assert result.stability.shape == (2, model.view.layers, model.view.heads)
    for layer, head in ((0, 0), (model.view.layers - 1, model.view.heads - 1)):
        for index, prefixed in enumerate(prefixed_traces):
            for field, shift in (("stability", 0), ("stability_null", 9)):
                expected = slow_stability(plain, prefixed, layer, head, 4, shift, set())
                assert float(result[field][index, layer, head]) == pytest.approx(expected, abs=1e-6, nan_ok=True), field


def test_massive_tokens_of_any_reading_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = double("llama")
    plain, prefixed = model.trace(text()), model.trace([*PREFIXES[0], *text().tolist()])
    prefixed_length = len(prefixed)
    monkeypatch.setattr(
        type(plain), "massive_tokens", lambda trace, factor=5.0: [0, 2, 10] if len(trace) == prefixed_length else [4]
    )
    result = rs.prefix_stability(model, text(), PREFIXES[:1], min_keys=4)
    expected = slow_stability(plain, prefixed, 1, 2, 4, 0, {4, 10 - 3})
    assert float(result.stability[0, 1, 2]) == pytest.approx(expected, abs=1e-6)
    expected_null = slow_stability(plain, prefixed, 1, 2, 4, 9, {4, 10 - 3})
    assert float(result.stability_null[0, 1, 2]) == pytest.approx(expected_null, abs=1e-6)
    with_massive = rs.prefix_stability(model, text(), PREFIXES[:1], min_keys=4, keep_massive=True)
    assert float(with_massive.stability[0, 1, 2]) != pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["llama", "llama_yarn", "neox", "qwen3", "gemma3", "own_alibi", "own_buckets"])
def test_layer_0_is_stable_under_relative_positions(name: str) -> None:
    """A score of layer 0 depends only on the two embeddings and their distance."""
    result = rs.prefix_stability(double(name), text(), PREFIXES, min_keys=3)
    layer_0 = result.stability[:, 0].values
    assert np.allclose(layer_0[np.isfinite(layer_0)], 1, atol=1e-6)
    assert np.isfinite(layer_0).any()
    layer_1 = result.stability[:, 1].values
    assert float(np.nanmin(layer_1)) < 0.999


def test_the_null_is_1_for_heads_that_see_only_distance_and_small_for_heads_that_see_only_tokens() -> None:
    model = random_model(heads=2, position="alibi")
    tokens_and_distance = rs.prefix_stability(model, list(range(1, 31)), [[40, 41, 42]])
    assert float(tokens_and_distance.stability.min()) == pytest.approx(1)
    assert float(tokens_and_distance.stability_null.min()) < 0.99
    with torch.no_grad():
        model.view.layer_heads[0].W_Q.zero_()
    only_distance = rs.prefix_stability(model, list(range(1, 31)), [[40, 41, 42]])
    assert only_distance.stability.values == pytest.approx(1)
    assert only_distance.stability_null.values == pytest.approx(1)
    only_tokens = rs.prefix_stability(random_model(heads=8), list(range(1, 61)), [[70, 71, 72]])
    assert only_tokens.stability.values == pytest.approx(1)
    assert float(abs(only_tokens.stability_null).mean()) < 0.15


def test_the_null_of_a_short_text_uses_a_smaller_shift() -> None:
    """Shifted by half the text, no query would have enough keys."""
    model, ids = double("llama"), text(n=14)
    result = rs.prefix_stability(model, ids, PREFIXES, min_keys=8, keep_massive=True)
    assert np.isfinite(result.stability_null.values).all()
    prefixed_traces = [model.trace([*prefix, *ids.tolist()]) for prefix in PREFIXES]
    for index, prefixed in enumerate(prefixed_traces):
        expected = slow_stability(model.trace(ids), prefixed, 1, 0, 8, 4, set())
        assert float(result.stability_null[index, 1, 0]) == pytest.approx(expected, abs=1e-6)


def test_blocks_of_queries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = double("llama")
    one_block = rs.prefix_stability(model, text(), PREFIXES, min_keys=4)
    monkeypatch.setattr(prefix_stability_module, "cache_block_numel", lambda device: 1)
    row_blocks = rs.prefix_stability(model, text(), PREFIXES, min_keys=4)
    for field in one_block.data_vars:
        assert np.allclose(one_block[field], row_blocks[field], equal_nan=True), field


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_the_common_suffix_is_the_longest_one(a: list[int], b: list[int]) -> None:
    length = common_suffix_length(torch.tensor(a), torch.tensor(b))
    assert length == max(k for k in range(min(len(a), len(b)) + 1) if a[len(a) - k :] == b[len(b) - k :])


def test_strings_are_joined_and_only_shared_tokens_count() -> None:
    model = rs.load()
    sentence = " the keys to the cabinet are on the table in the hall"
    result = rs.prefix_stability(model, sentence, ["Once upon a time", "In 1912"])
    assert result.prefix.values.tolist() == ["Once upon a time", "In 1912"]
    ids = model.ids(sentence)
    suffix_lengths = [common_suffix_length(ids, model.ids(prefix + sentence)) for prefix in result.prefix.values]
    assert result.attrs["shared_tokens"] == min(suffix_lengths) >= len(ids) - 2
    assert float(result.stability.sel(layer=0).min()) == pytest.approx(1, abs=1e-3)
    assert float(result.stability.sel(layer=5).min()) < 1


def test_default_prefixes_are_drawn_from_the_text_by_the_seed() -> None:
    """They are token ids, so every token of the text is shared."""
    model, sentence = rs.load(), "The keys to the cabinet are on the table in the hall"
    result = rs.prefix_stability(model, sentence)
    prefixes = [[int(token_id) for token_id in label.split()] for label in result.prefix.values]
    ids = model.ids(sentence)
    assert [len(prefix) for prefix in prefixes] == [8, 8]
    assert {token_id for prefix in prefixes for token_id in prefix} <= set(ids.tolist())
    assert result.attrs["shared_tokens"] == len(ids)
    assert result.drop_attrs().equals(rs.prefix_stability(model, ids, prefixes).drop_attrs())
    assert result.identical(rs.prefix_stability(model, sentence))
    assert not np.array_equal(result.prefix, rs.prefix_stability(model, sentence, seed=1).prefix)


def test_progress_is_reported_after_every_prefix() -> None:
    steps: list[tuple[int, int]] = []
    rs.prefix_stability(double("llama"), text(), PREFIXES, min_keys=4, progress=lambda *step: steps.append(step))
    assert steps == [(1, 2), (2, 2)]


@pytest.mark.parametrize("invalid", [[], "Once", [[]], ["Once"], [[1, 2], "Once"]])
def test_invalid_prefixes_are_refused(invalid: Any) -> None:
    with pytest.raises(rs.RheoscopeError, match=r"prefixes must be a list .*; type prefixes=\[\[1, 2, 3\]\]"):
        rs.prefix_stability(double("llama"), text(), invalid)


def test_too_few_keys_and_too_long_texts_are_refused() -> None:
    model = double("llama")
    with pytest.raises(rs.RheoscopeError, match=r"at least 8 other keys, .* only 6 tokens .*; use a longer text"):
        rs.prefix_stability(model, text(n=6), PREFIXES)
    with pytest.raises(rs.RheoscopeError, match=r"min_keys must be at least 3, got 2; type min_keys=8"):
        rs.prefix_stability(model, text(), PREFIXES, min_keys=2)
    with pytest.raises(rs.RheoscopeError, match="reads at most 64"):
        rs.prefix_stability(double("gpt2"), text(n=60), [[1, 2, 3, 4, 5]])
