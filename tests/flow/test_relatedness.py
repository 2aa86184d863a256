"""Relatedness: planted groups are found, what frequency alone explains is not, and chance is chance."""

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
NOTHING = torch.zeros(1, 20).double()


def cloud(seed: int, width: int = 6) -> Tensor:
    return torch.randn(20, width, generator=torch.Generator().manual_seed(seed)).double()


def apart(x: Tensor) -> Tensor:
    return upper_triangle(distances(centred_inner_products(x)))[None]


def test_planted_groups_are_found() -> None:
    found = kernel(apart(cloud(0)[GROUP]), GROUP, NOTHING, 50, 0)
    assert float(found["nearer"]) == 1
    assert float(found["p_value"]) == pytest.approx(1 / 51)
    assert float(found["correlation"]) > 5 * float(found["correlation_null_sd"])


def test_what_frequency_explains_is_not_meaning() -> None:
    """Words on a line by their frequency alone, and groups of like frequency."""
    frequency = GROUP + 0.2 * cloud(1)[:, 0]
    plain, given = (kernel(apart(frequency[:, None]), GROUP, known, 100, 0) for known in (NOTHING, frequency[None]))
    assert float(plain["nearer"]) > 0.9
    assert abs(float(given["correlation"])) < 1e-6


def test_nearer_is_its_definition() -> None:
    near, _ = residual_ranks(-apart(cloud(2)), NOTHING)
    table, (i, j) = torch.zeros(20, 20).double(), torch.triu_indices(20, 20, 1)
    table[i, j] = table[j, i] = near[0]
    ours = [table[a, b] for a in range(4) for b in range(a)]
    others = [table[a, b] for a in range(4) for b in range(4, 20)]
    slowly = sum(float(one > other) for one in ours for other in others) / (len(ours) * len(others))
    assert float(nearer_fraction(near, GROUP == 0)) == pytest.approx(slowly)


def test_p_values_of_structureless_clouds_are_even() -> None:
    p = torch.stack(
        [kernel(apart(cloud(seed)), GROUP, cloud(seed + 500)[:, :2].mT, 60, seed)["p_value"] for seed in range(150)]
    )
    for level in (0.1, 0.5):
        assert abs(float((p <= level).double().mean()) - level) < 0.13


def test_a_model_is_asked_in_words_or_in_ids() -> None:
    groups = {"a": [[7], [9]], "b": [[8], [30]]}
    found = rs.relatedness(double("llama"), groups, carriers=[[3, 4]], draws=20, control=double("llama"))
    assert float(abs(found.correlation - found.correlation_untrained).max()) < 1e-12
    assert found.attrs["given"] == "letters, tokens, capital"
    with pytest.raises(RheoscopeError, match="both strings or both ids"):
        rs.relatedness(double("llama"), groups)
    with pytest.raises(RheoscopeError, match="two groups or more"):
        rs.relatedness(default(), {"a": ["dog", "cat"]})


def test_the_set_that_ships_has_twenty_groups_of_six() -> None:
    rows = read_tsv_rows(DEFAULT_WORDS_FILE, ("group", "word"), ("count",))
    sizes = torch.tensor([[row["group"] for row in rows].count(group) for group in {row["group"] for row in rows}])
    assert sizes.tolist() == [6] * 20
    assert len({row["word"] for row in rows}) == 120
    assert all(int(row["count"]) > 0 for row in rows)
