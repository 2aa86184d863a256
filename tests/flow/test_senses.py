"""Senses: planted ones are found, words that no context moves have none, and chance is chance."""

import copy
import re
from collections import Counter
from itertools import combinations
from pathlib import Path
from statistics import mean, pstdev

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import rheoscope as rs
from rheoscope.flow.occurrences import distances_between, word_position
from rheoscope.flow.senses.analysis import (
    DEFAULT_WORDS_FILE,
    MAX_EFFECT,
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


def table(x: Tensor, one: int = 4) -> DistanceTable:
    x = x if x.ndim == 3 else x[None]
    return DistanceTable(distances_between(x, torch.zeros(x.shape[:-1])), sense_splits(one, x.shape[-2] - one))


def slowly(x: Tensor, one: int) -> float:
    """The definition, pair by pair."""
    pairs = list(combinations(range(len(x)), 2))
    apart = {(i, j): float((x[i] - x[j]).norm()) for i, j in pairs}
    far = mean(apart[i, j] for i, j in pairs if (i < one) != (j < one))
    near = mean(apart[i, j] for i, j in pairs if (i < one) == (j < one))
    return (far - near) / pstdev(apart.values())


@settings(max_examples=8)
@given(st.integers(2, 4), st.integers(2, 4), st.integers(0, 99))
def test_the_effect_is_its_definition_and_the_splits_even_out(one: int, other: int, seed: int) -> None:
    x = torch.randn(one + other, 5, generator=torch.Generator().manual_seed(seed)).double()
    found = split_effects(table(x, one))[0]
    assert float(found[0]) == pytest.approx(slowly(x, one))
    assert float(found.mean()) == pytest.approx(0, abs=1e-12)  # null 0
    swapped = split_effects(table(torch.cat([x[one:], x[:one]]), other))[0, 0]
    assert float(swapped) == pytest.approx(float(found[0]))


def test_two_planted_senses_reach_the_bound_and_one_point_has_none() -> None:
    apart = torch.eye(2).repeat_interleave(4, 0).double()
    found = kernel([table(torch.stack([torch.ones(8, 2).double(), apart]))])
    assert found["effect"][:, 0].tolist() == pytest.approx([0, MAX_EFFECT])
    assert found["p"][:, 0].tolist() == pytest.approx([1, 1 / 35])
    assert found["nearest"][:, 0].tolist() == pytest.approx([3 / 7, 1])


def test_the_nearest_of_equal_ones_share() -> None:
    x = torch.tensor([[0.0], [1.0], [1.0], [5.0]]).double()
    assert float(nearest_same_sense(table(x, 2))) == pytest.approx(
        (1 / 2 + 0 + 0 + 1 / 2) / 4
    )  # 0: {1, 2} · 1: {2} · 2: {1} · 3: {1, 2}


def test_p_values_of_structureless_clouds_are_even() -> None:
    x = torch.randn(400, 8, 6, generator=torch.Generator().manual_seed(0)).double()
    p = kernel([table(one) for one in x])["p"][0]
    for level in (0.1, 0.3, 0.7):
        assert abs(float((p <= level).double().mean()) - level) < 0.08


@pytest.mark.parametrize("name", ["llama", "own_alibi"])
def test_nothing_at_the_embedding(name: str) -> None:
    found = rs.senses(double(name), {"7": BANK}, draws=20)
    assert float(found.effect[0]) == 0
    assert float(found.nearest[0]) == pytest.approx(float(found.nearest_null[0]))
    assert found.attrs["embedding"] == "one point a word"
    assert (abs(found.effect[1:]) > 0).all()


def test_learned_positions_are_told() -> None:
    assert "positions" in rs.senses(double("gpt2"), {"7": BANK}, draws=20).attrs["embedding"]


def test_a_model_that_ignores_context_has_no_senses() -> None:
    deaf = copy.deepcopy(network("llama"))
    for layer in deaf.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
    found = rs.senses(rs.load(deaf), {"7": BANK}, draws=20)
    assert (found.effect == 0).all()
    assert (found.p_value == 1).all()


def test_a_control_stands_beside_it_and_must_be_the_same_architecture() -> None:
    found = rs.senses(double("llama"), {"7": BANK}, draws=20, control=double("llama"))
    assert np.array_equal(found.effect, found.effect_untrained)
    assert (found.effect_gain == 0).all()
    with pytest.raises(RheoscopeError, match="a control has the layers"):
        rs.senses(double("llama"), {"7": BANK}, draws=20, control=default())


def test_the_set_that_ships_is_fair() -> None:
    """Same last words, and no word of content in two sentences of a word: overlap of words tells no sense."""
    rows = read_tsv_rows(DEFAULT_WORDS_FILE, ("word", "sense", "sentence"))
    assert set(Counter((row["word"], row["sense"]) for row in rows).values()) == {4}
    assert len({row["word"] for row in rows}) == 40
    assert all(row["sentence"].endswith(f" the {row['word']}") for row in rows)
    for word in {row["word"] for row in rows}:
        said = [set(re.findall(r"\w{6,}", row["sentence"].lower())) - {word} for row in rows if row["word"] == word]
        twice = {one for one, times in Counter(x for some in said for x in some).items() if times > 1}
        assert twice <= {"before", "through", "behind", "beside", "inside", "within", "between", "against", "around"}, (
            word
        )


def test_a_place_is_the_last_token_of_the_last_such_word() -> None:
    model = default()
    at = word_position(model, "A bank is no bank, bankers say", "bank")
    assert model.token_strings(model.ids("A bank is no bank, bankers say"))[at] == " bank"


def test_words_from_a_file_and_what_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "words.tsv"
    lines = [
        f"key\t{sense}\t{text} the key"
        for sense, some in {"a": ("Turn", "Lose"), "b": ("Play", "Sing in")}.items()
        for text in some
    ]
    file.write_text("\n".join(["word\tsense\tsentence", *lines]))
    assert rs.senses(default(), str(file), draws=20).word.values.tolist() == ["key"]
    file.write_text("word\tsense\nkey\ta")
    with pytest.raises(RheoscopeError, match="first line"):
        rs.senses(default(), str(file))
    with pytest.raises(RheoscopeError, match="cannot be read"):
        rs.senses(default(), "nowhere.tsv")
    with pytest.raises(RheoscopeError, match="two senses"):
        rs.senses(default(), {"key": {"a": ["the key", "a key"]}})
    with pytest.raises(RheoscopeError, match="different tokens"):
        rs.senses(default(), {"key": {"a": ["key", "the key"], "b": ["my key", "our key"]}})
    with pytest.raises(RheoscopeError, match="does not stand in"):
        rs.senses(default(), {"key": {"a": ["keys", "the key"], "b": ["my key", "our key"]}})
