"""Purity: planted names are found, the null's p-values are uniform, counts equal a loop."""

from collections import Counter

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.flow.purity import pure
from tests.cases import double, text
from tests.flow.test_clusters import planted
from tests.pretrained.cases import random

F64 = torch.float64


def gathered(n: int = 30):
    centres = torch.eye(3, dtype=F64)[torch.arange(n) % 3] * 10
    trace = planted(centres + 0.1 * random(0, n, 3))
    return trace, rs.clusters(trace, angle=0.5)


def test_without_draws_there_is_no_null() -> None:
    trace, found = gathered()
    alone, beside = rs.purity(trace, found, draws=0), rs.purity(trace, found, draws=3)
    assert list(alone.data_vars) == ["purity"]
    assert np.array_equal(alone.purity, beside.purity)


def test_names_that_make_the_clusters_are_pure_and_random_ones_are_not() -> None:
    trace, found = gathered()
    rng = np.random.default_rng(0)
    names = {"planted": [i % 3 for i in range(30)], "random": rng.integers(0, 3, 30).tolist()}
    made_of = rs.purity(trace, found, names)
    assert float(made_of.purity.sel(by="planted").min()) == 1
    assert float(made_of.p_value.sel(by="planted").max()) == pytest.approx(1 / 201)
    assert float(made_of.purity_z.sel(by="planted").min()) > 5
    assert float(made_of.p_value.sel(by="random").min()) > 0.01
    assert float(made_of.purity.sel(by="position").max()) < 0.6


def test_p_values_of_chance_are_uniform() -> None:
    trace, found = gathered()
    rng = np.random.default_rng(1)
    chance = {f"{i}": rng.integers(0, 4, 30).tolist() for i in range(150)}
    p = rs.purity(trace, found.isel(point=[0]), chance).p_value.values[0][-150:]
    assert 0.4 < p.mean() < 0.75  # ties lie above
    assert (p <= 0.05).mean() < 0.1


@pytest.mark.parametrize("seed", range(5))
def test_purity_equals_a_count(seed: int) -> None:
    label, names = torch.randint(0, 5, (2, 40), generator=torch.Generator().manual_seed(seed))
    commonest = sum(max(Counter(names[label == c].tolist()).values()) for c in label.unique())
    assert float(pure(label, names[None])[0]) == pytest.approx(commonest / 40)
    assert float(pure(label, label[None])[0]) == 1


def test_clusters_of_another_text_or_model_are_refused() -> None:
    one, other = double("gpt2"), double("gpt2_by_depth")
    trace = one.trace(text())
    for mixed in (other.trace(text()), one.trace(text(1)), one.trace(text(n=9))):
        with pytest.raises(rs.RheoscopeError, match=r"clusters are those of the same text in the same model, got"):
            rs.purity(trace, rs.clusters(mixed))
    with pytest.raises(rs.RheoscopeError, match="got another weights; type"):
        rs.purity(trace, rs.density_clusters(other.trace(text())))
    assert rs.purity(trace, rs.clusters(trace)).purity.equals(rs.purity(trace).purity)


def test_names_of_another_text_are_refused() -> None:
    trace, found = gathered()
    with pytest.raises(rs.RheoscopeError, match=r"'class' names 2 tokens, the text has 30; type one name per token"):
        rs.purity(trace, found, {"class": ["noun", "verb"]})
