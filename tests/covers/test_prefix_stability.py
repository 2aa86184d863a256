"""Scores under other beginnings: a slow twin gives the same numbers, embeddings do not feel a prefix, place alone is told apart."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

import rheoscope as rs
from rheoscope.covers.prefix_stability import analysis as module
from rheoscope.covers.prefix_stability.analysis import common_suffix_length
from tests.cases import double, text
from tests.covers.cases import bare

F64 = torch.float64
PREFIXES = [[5, 9, 30], [21, 22, 8, 8, 11, 4]]


def slow(one: Any, other: Any, layer: int, head: int, min_keys: int, shift: int, dropped: set[int]) -> float:
    """The definition, read aloud, query by query; places counted from the start of the text."""
    n, before = len(one), len(other) - len(one)
    a, b = one.scores(layer, head).numpy(), other.scores(layer, head).numpy()
    mask, at = one.view.layer_heads[layer].mechanism.mask, torch.arange(n + before)
    permitted, there = mask(at, at), [i for i in range(n) if i not in dropped]
    found = []
    for i in range(n - shift):
        pairs = [
            j
            for j in range(n - shift)
            if j != i
            and permitted[i, j]
            and permitted[i + shift + before, j + shift + before]
            and {i, j, i + shift, j + shift} <= set(there)
        ]
        if len(pairs) >= min_keys:
            beside = b[i + shift + before, [j + shift + before for j in pairs]]
            found.append(spearmanr(a[i, pairs], beside).statistic)
    return float(np.mean(found)) if found else float("nan")


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox", "gemma3_capped", "qwen3", "bert", "own_alibi", "own_metric"])
def test_it_equals_a_slow_twin(name: str) -> None:
    model = double(name)
    one, others = model.trace(text()), [model.trace([*prefix, *text().tolist()]) for prefix in PREFIXES]
    found = rs.prefix_stability(model, text(), PREFIXES, min_keys=4, keep_massive=True)
    assert found.stability.shape == (2, model.view.layers, model.view.heads)
    for layer, head in ((0, 0), (model.view.layers - 1, model.view.heads - 1)):
        for at, other in enumerate(others):
            for field, shift in (("stability", 0), ("stability_null", 9)):
                wanted = slow(one, other, layer, head, 4, shift, set())
                assert float(found[field][at, layer, head]) == pytest.approx(wanted, abs=1e-6, nan_ok=True), field


def test_massive_tokens_of_any_reading_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    model = double("llama")
    one, other = model.trace(text()), model.trace([*PREFIXES[0], *text().tolist()])
    longer = len(other)
    monkeypatch.setattr(
        type(one), "massive_tokens", lambda trace, factor=5.0: [0, 2, 10] if len(trace) == longer else [4]
    )
    found = rs.prefix_stability(model, text(), PREFIXES[:1], min_keys=4)
    wanted = slow(one, other, 1, 2, 4, 0, {4, 10 - 3})
    assert float(found.stability[0, 1, 2]) == pytest.approx(wanted, abs=1e-6)
    null = slow(one, other, 1, 2, 4, 9, {4, 10 - 3})
    assert float(found.stability_null[0, 1, 2]) == pytest.approx(null, abs=1e-6)
    kept = rs.prefix_stability(model, text(), PREFIXES[:1], min_keys=4, keep_massive=True)
    assert float(kept.stability[0, 1, 2]) != pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("name", ["llama", "llama_yarn", "neox", "qwen3", "gemma3", "own_alibi", "own_buckets"])
def test_embeddings_do_not_feel_a_prefix(name: str) -> None:
    """Relative positions: in layer 0 a score is a relation of two tokens and their distance, nothing else."""
    found = rs.prefix_stability(double(name), text(), PREFIXES, min_keys=3)
    there = found.stability[:, 0].values
    assert np.allclose(there[np.isfinite(there)], 1, atol=1e-6)
    assert np.isfinite(there).any()
    deeper = found.stability[:, 1].values
    assert float(np.nanmin(deeper)) < 0.999


def test_place_alone_is_as_stable_for_other_tokens() -> None:
    """A head that only sees distance has 1 in its null too; one that only sees tokens does not."""
    model = bare(heads=2, position="alibi")
    plain = rs.prefix_stability(model, list(range(1, 31)), [[40, 41, 42]])
    assert float(plain.stability.min()) == pytest.approx(1)
    assert float(plain.stability_null.min()) < 0.99
    with torch.no_grad():
        model.view.layer_heads[0].W_Q.zero_()
    found = rs.prefix_stability(model, list(range(1, 31)), [[40, 41, 42]])
    assert found.stability.values == pytest.approx(1)
    assert found.stability_null.values == pytest.approx(1)
    blind = bare(heads=8)
    tokens = rs.prefix_stability(blind, list(range(1, 61)), [[70, 71, 72]])
    assert tokens.stability.values == pytest.approx(1)
    assert float(abs(tokens.stability_null).mean()) < 0.15


def test_a_short_text_has_a_null_too() -> None:
    """Half of it has no query with enough keys, so the other tokens are nearer by."""
    model, ids = double("llama"), text(n=14)
    found = rs.prefix_stability(model, ids, PREFIXES, min_keys=8, keep_massive=True)
    assert np.isfinite(found.stability_null.values).all()
    others = [model.trace([*prefix, *ids.tolist()]) for prefix in PREFIXES]
    for at, other in enumerate(others):
        wanted = slow(model.trace(ids), other, 1, 0, 8, 4, set())
        assert float(found.stability_null[at, 1, 0]) == pytest.approx(wanted, abs=1e-6)


def test_blocks_of_queries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = double("llama")
    whole = rs.prefix_stability(model, text(), PREFIXES, min_keys=4)
    monkeypatch.setattr(module, "cache_block_numel", lambda device: 1)
    apart = rs.prefix_stability(model, text(), PREFIXES, min_keys=4)
    for field in whole.data_vars:
        assert np.allclose(whole[field], apart[field], equal_nan=True), field


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_the_common_end_is_the_longest(a: list[int], b: list[int]) -> None:
    found = common_suffix_length(torch.tensor(a), torch.tensor(b))
    assert a[len(a) - found :] == b[len(b) - found :]
    assert found == max(k for k in range(min(len(a), len(b)) + 1) if a[len(a) - k :] == b[len(b) - k :])


def test_strings_are_joined_and_only_tokens_that_all_readings_share_count() -> None:
    model = rs.load()
    said = " the keys to the cabinet are on the table in the hall"
    found = rs.prefix_stability(model, said, ["Once upon a time", "In 1912"])
    assert found.prefix.values.tolist() == ["Once upon a time", "In 1912"]
    whole = model.ids(said)
    ends = [common_suffix_length(whole, model.ids(prefix + said)) for prefix in found.prefix.values]
    assert found.attrs["shared_tokens"] == min(ends) >= len(whole) - 2
    assert float(found.stability.sel(layer=0).min()) == pytest.approx(1, abs=1e-3)
    assert float(found.stability.sel(layer=5).min()) < 1


def test_without_prefixes_beginnings_are_drawn_from_the_text() -> None:
    """Ids before ids: the same as typing them, the same ones for a seed, of the text's own tokens, all of it shared."""
    model, said = rs.load(), "The keys to the cabinet are on the table in the hall"
    found = rs.prefix_stability(model, said)
    prefixes = [[int(one) for one in name.split()] for name in found.prefix.values]
    ids = model.ids(said)
    assert [len(one) for one in prefixes] == [8, 8]
    assert {one for prefix in prefixes for one in prefix} <= set(ids.tolist())
    assert found.attrs["shared_tokens"] == len(ids)
    assert found.drop_attrs().equals(rs.prefix_stability(model, ids, prefixes).drop_attrs())
    assert found.identical(rs.prefix_stability(model, said))
    assert not np.array_equal(found.prefix, rs.prefix_stability(model, said, seed=1).prefix)


def test_progress_is_told_prefix_by_prefix() -> None:
    told: list[tuple[int, int]] = []
    rs.prefix_stability(
        double("llama"), text(), PREFIXES, min_keys=4, progress=lambda done, of: told.append((done, of))
    )
    assert told == [(1, 2), (2, 2)]


def test_what_it_cannot_do_is_told_in_one_line() -> None:
    model = double("llama")
    for wrong in ([], "Once", [[]], ["Once"], [[1, 2], "Once"]):
        with pytest.raises(rs.RheoscopeError, match=r"prefixes are a list .*; type prefixes="):
            rs.prefix_stability(model, text(), wrong)
    with pytest.raises(rs.RheoscopeError, match=r"at least 8 other keys .* and 6 tokens .*; type a longer text"):
        rs.prefix_stability(model, text(n=6), PREFIXES)
    with pytest.raises(rs.RheoscopeError, match=r"at least 2 other keys \(3 or more\)"):
        rs.prefix_stability(model, text(), PREFIXES, min_keys=2)
    with pytest.raises(rs.RheoscopeError, match="reads at most 64"):
        rs.prefix_stability(double("gpt2"), text(n=60), [[1, 2, 3, 4, 5]])
