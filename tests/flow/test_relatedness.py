"""Tests of relatedness: planted groups, confounders, and calibration of p-values."""

import pytest
import torch
from torch import Tensor

import rheoscope as rs
from rheoscope.flow.relatedness.analysis import DEFAULT_WORDS_FILE, kernel, nearer_fraction, residual_ranks
from rheoscope.flow.word_lists import read_tsv_rows
from rheoscope.shapes import RheoscopeError
from rheoscope.space.pair_distances import centred_inner_products, distances, upper_triangle
from tests.cases import default, double

GROUP = torch.arange(5).repeat_interleave(4)
NO_CONFOUNDERS = torch.zeros(1, 20).double()


def cloud(seed: int, width: int = 6) -> Tensor:
    return torch.randn(20, width, generator=torch.Generator().manual_seed(seed)).double()


def pair_distances(x: Tensor) -> Tensor:
    return upper_triangle(distances(centred_inner_products(x)))[None]


def test_planted_groups_are_detected() -> None:
    result = kernel(pair_distances(cloud(0)[GROUP]), GROUP, NO_CONFOUNDERS, 50, 0)
    assert float(result["same_group_nearer"]) == 1
    assert float(result["p_value"]) == pytest.approx(1 / 51)
    assert float(result["correlation"]) > 5 * float(result["correlation_null_sd"])


def test_frequency_explains_nothing_after_control() -> None:
    """Words lie on a line by frequency, and each group has similar frequencies."""
    frequency = GROUP + 0.2 * cloud(1)[:, 0]
    without_control, with_control = (
        kernel(pair_distances(frequency[:, None]), GROUP, confounders, 100, 0)
        for confounders in (NO_CONFOUNDERS, frequency[None])
    )
    assert float(without_control["same_group_nearer"]) > 0.9
    assert abs(float(with_control["correlation"])) < 1e-6


def test_nearer_fraction_equals_a_loop_over_comparisons() -> None:
    closeness, _ = residual_ranks(-pair_distances(cloud(2)), NO_CONFOUNDERS)
    table, (i, j) = torch.zeros(20, 20).double(), torch.triu_indices(20, 20, 1)
    table[i, j] = table[j, i] = closeness[0]
    within = [table[a, b] for a in range(4) for b in range(a)]
    across = [table[a, b] for a in range(4) for b in range(4, 20)]
    expected = sum(float(inner > outer) for inner in within for outer in across) / (len(within) * len(across))
    assert float(nearer_fraction(closeness, GROUP == 0)) == pytest.approx(expected)


def test_p_values_of_random_clouds_are_uniform() -> None:
    p = torch.stack(
        [
            kernel(pair_distances(cloud(seed)), GROUP, cloud(seed + 500)[:, :2].mT, 60, seed)["p_value"]
            for seed in range(150)
        ]
    )
    for level in (0.1, 0.5):
        assert abs(float((p <= level).double().mean()) - level) < 0.13


def test_words_may_be_strings_or_token_ids() -> None:
    groups = {"a": [[7], [9]], "b": [[8], [30]]}
    result = rs.relatedness(double("llama"), groups, carrier_sentences=[[3, 4]], draws=20, control=double("llama"))
    assert float(abs(result.correlation - result.correlation_untrained).max()) < 1e-12
    assert result.attrs["confounders"] == "letters, tokens, capital"
    with pytest.raises(RheoscopeError, match="must both be strings or both be token ids"):
        rs.relatedness(double("llama"), groups)
    with pytest.raises(RheoscopeError, match=r"at least 2 groups of at least 2 words, got groups of \[2\] words"):
        rs.relatedness(default(), {"a": ["dog", "cat"]})


def test_progress_covers_the_null() -> None:
    """The null and the groups take most of the time, so the points alone are not the whole progress."""
    calls: list[tuple[int, int]] = []
    groups = {"animals": ["dog", "cat"], "tools": ["axe", "saw"]}
    rs.relatedness(
        double("gpt2"),
        {name: [[1, 2], [3]] for name in groups},
        [[1], [2]],
        draws=5,
        progress=lambda *call: calls.append(call),
    )
    assert calls[:2] == [(1, 6), (2, 6)]
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1] == (6, 6)
    assert len(calls) > 3


def test_default_list_has_209_groups_of_six() -> None:
    rows = read_tsv_rows(DEFAULT_WORDS_FILE, ("group", "word"), ("count",))
    sizes = torch.tensor([[row["group"] for row in rows].count(group) for group in {row["group"] for row in rows}])
    assert sizes.tolist() == [6] * 209
    assert len({row["word"] for row in rows}) == 6 * 209
    assert all(int(row["count"]) > 0 for row in rows)
