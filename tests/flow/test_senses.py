"""Tests of senses: planted senses, models without context, calibration of p-values, the default list."""

import copy
import re
from collections import Counter
from itertools import chain, combinations
from math import sqrt
from pathlib import Path
from statistics import mean, pstdev

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import rheoscope as rs
from rheoscope.flow.occurrences import count_closing_tokens, distances_between, word_position
from rheoscope.flow.senses.analysis import (
    DEFAULT_WORDS_FILE,
    DistanceTable,
    kernel,
    nearest_same_sense,
    sense_splits,
    split_effects,
)
from rheoscope.flow.word_lists import read_tsv_rows
from rheoscope.shapes import RheoscopeError
from tests.cases import default, double, network

BANK = {"a": [[3, 4, 7], [5, 6, 9, 7]], "b": [[8, 30, 7], [21, 12, 7]]}


def table(x: Tensor, n_first: int = 4) -> DistanceTable:
    x = x if x.ndim == 3 else x[None]
    return DistanceTable(distances_between(x, torch.zeros(x.shape[:-1])), sense_splits(n_first, x.shape[-2] - n_first))


def slow_effect(x: Tensor, n_first: int) -> float:
    """The effect from a loop over pairs."""
    pairs = list(combinations(range(len(x)), 2))
    distances = {(i, j): float((x[i] - x[j]).norm()) for i, j in pairs}
    across = mean(distances[i, j] for i, j in pairs if (i < n_first) != (j < n_first))
    within = mean(distances[i, j] for i, j in pairs if (i < n_first) == (j < n_first))
    return (across - within) / pstdev(distances.values())


@settings(max_examples=8)
@given(st.integers(2, 4), st.integers(2, 4), st.integers(0, 99))
def test_effect_equals_a_loop_and_its_mean_over_splits_is_0(n_first: int, n_second: int, seed: int) -> None:
    x = torch.randn(n_first + n_second, 5, generator=torch.Generator().manual_seed(seed)).double()
    result = split_effects(table(x, n_first))[0]
    assert float(result[0]) == pytest.approx(slow_effect(x, n_first))
    assert float(result.mean()) == pytest.approx(0, abs=1e-12)  # null 0
    swapped = split_effects(table(torch.cat([x[n_first:], x[:n_first]]), n_second))[0, 0]
    assert float(swapped) == pytest.approx(float(result[0]))


def test_planted_senses_reach_the_bound_and_equal_points_have_effect_0() -> None:
    distances = torch.eye(2).repeat_interleave(4, 0).double()
    result = kernel([table(torch.stack([torch.ones(8, 2).double(), distances]))])
    assert result["effect"][:, 0].tolist() == pytest.approx([0, sqrt(28 / 16 * 28 / 12)])
    assert result["p"][:, 0].tolist() == pytest.approx([1, 1 / 35])
    assert result["nearest_same_sense"][:, 0].tolist() == pytest.approx([3 / 7, 1])


def test_ties_between_nearest_occurrences_count_in_proportion() -> None:
    x = torch.tensor([[0.0], [1.0], [1.0], [5.0]]).double()
    assert float(nearest_same_sense(table(x, 2))) == pytest.approx(
        (1 / 2 + 0 + 0 + 1 / 2) / 4
    )  # 0: {1, 2} · 1: {2} · 2: {1} · 3: {1, 2}


def test_p_values_of_random_clouds_are_uniform() -> None:
    x = torch.randn(400, 8, 6, generator=torch.Generator().manual_seed(0)).double()
    p = kernel([table(points) for points in x])["p"][0]
    for level in (0.1, 0.3, 0.7):
        assert abs(float((p <= level).double().mean()) - level) < 0.08


@pytest.mark.parametrize("name", ["llama", "own_alibi"])
def test_effect_is_0_at_the_embedding(name: str) -> None:
    result = rs.senses(double(name), {"7": BANK}, draws=20)
    assert float(result.effect[0]) == 0
    assert float(result.nearest_same_sense[0]) == pytest.approx(float(result.nearest_same_sense_null[0]))
    assert result.attrs["embedding"] == "all occurrences of a word are one point"
    assert (abs(result.effect[1:]) > 0).all()


def test_learned_positions_are_noted() -> None:
    assert "positions" in rs.senses(double("gpt2"), {"7": BANK}, draws=20).attrs["embedding"]


def test_a_model_that_ignores_context_has_no_senses() -> None:
    context_free = copy.deepcopy(network("llama"))
    for layer in context_free.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
    result = rs.senses(rs.load(context_free), {"7": BANK}, draws=20)
    assert (result.effect == 0).all()
    assert (result.p_value == 1).all()


def test_control_must_have_the_same_architecture() -> None:
    result = rs.senses(double("llama"), {"7": BANK}, draws=20, control=double("llama"))
    assert np.array_equal(result.effect, result.effect_untrained)
    assert (result.effect_gain == 0).all()
    with pytest.raises(
        RheoscopeError, match=r"the control must have 2 layers like the model, got 6; type control=rs.load"
    ):
        rs.senses(double("llama"), {"7": BANK}, draws=20, control=default())


def test_default_list_does_not_reveal_the_sense_by_word_overlap() -> None:
    """All sentences end in the word and share no other content word, so word overlap does not reveal the sense."""
    rows = read_tsv_rows(DEFAULT_WORDS_FILE, ("word", "sense", "sentence"))
    assert set(Counter((row["word"], row["sense"]) for row in rows).values()) == {4}
    assert len({row["word"] for row in rows}) == 100
    assert all(row["sentence"].endswith(f" the {row['word']}") for row in rows)
    for target_word in {row["word"] for row in rows}:
        content_words = [
            set(re.findall(r"\w{6,}", row["sentence"].lower())) - {target_word}
            for row in rows
            if row["word"] == target_word
        ]
        repeated = {candidate for candidate, count in Counter(chain.from_iterable(content_words)).items() if count > 1}
        assert repeated <= {
            "before",
            "through",
            "behind",
            "beside",
            "inside",
            "within",
            "between",
            "against",
            "around",
        }, target_word


def test_word_position_is_the_last_token_of_the_last_occurrence() -> None:
    model = default()
    sentence = "A bank is no bank, bankers say"
    position = word_position(model, sentence, model.ids(sentence), "bank", count_closing_tokens(model))
    assert model.token_strings(model.ids("A bank is no bank, bankers say"))[position] == " bank"


def test_word_list_from_a_file_and_invalid_lists(tmp_path: Path) -> None:
    file = tmp_path / "words.tsv"
    lines = [
        f"key\t{sense}\t{text} the key"
        for sense, beginnings in {"a": ("Turn", "Lose"), "b": ("Play", "Sing in")}.items()
        for text in beginnings
    ]
    file.write_text("\n".join(["word\tsense\tsentence", *lines]))
    assert rs.senses(default(), str(file), draws=20).word.values.tolist() == ["key"]
    file.write_text("word\tsense\nkey\ta")
    with pytest.raises(RheoscopeError, match=r"the first line of .* must be word TAB sense TAB sentence"):
        rs.senses(default(), str(file))
    with pytest.raises(RheoscopeError, match="cannot be read"):
        rs.senses(default(), "nowhere.tsv")
    with pytest.raises(RheoscopeError, match="a word needs two senses with at least 2 sentences each"):
        rs.senses(default(), {"key": {"a": ["the key", "a key"]}})
    with pytest.raises(RheoscopeError, match="must end in the same token in all sentences"):
        rs.senses(default(), {"key": {"a": ["key", "the key"], "b": ["my key", "our key"]}})
    with pytest.raises(RheoscopeError, match="the sentence 'keys' must contain the word 'key'"):
        rs.senses(default(), {"key": {"a": ["keys", "the key"], "b": ["my key", "our key"]}})
