"""Purity: planted names are found, the null's p-values are uniform, counts equal a loop, repeats change nothing."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.flow.purity.analysis import NAMELESS, cluster_purity, kernel
from tests.cases import double, text
from tests.flow.test_clusters import planted
from tests.pretrained.cases import random

F64 = torch.float64


def gathered(n: int = 30):
    """Tokens w0, w1, … in three clusters, every third in the same."""
    centres = torch.eye(3, dtype=F64)[torch.arange(n) % 3] * 10
    trace = replace(planted(centres + 0.1 * random(0, n, 3)), tokens=[f" w{i}" for i in range(n)])
    return trace, rs.clusters(trace, angle=0.5)


def words(names: list[int]) -> dict[str, object]:
    return {f"w{i}": name for i, name in enumerate(names)}


def test_without_draws_there_is_no_null() -> None:
    trace, found = gathered()
    alone, beside = rs.purity(trace, found, draws=0), rs.purity(trace, found, draws=3)
    assert list(alone.data_vars) == ["purity", "named", "pairs"]
    assert np.array_equal(alone.purity, beside.purity)


def test_names_that_make_the_clusters_are_pure_and_random_ones_are_not() -> None:
    trace, found = gathered()
    rng = np.random.default_rng(0)
    labels = {"planted": words([i % 3 for i in range(30)]), "random": words(rng.integers(0, 3, 30).tolist())}
    made_of = rs.purity(trace, found, labels)
    assert float(made_of.purity.sel(by="planted").min()) == 1
    assert float(made_of.p_value.sel(by="planted").max()) == pytest.approx(1 / 201)
    assert float(made_of.p_value_anywhere.sel(by="planted")) == pytest.approx(1 / 201)
    assert float(made_of.purity_z.sel(by="planted").min()) > 5
    assert float(made_of.p_value.sel(by="random").min()) > 0.01
    assert bool(np.isnan(made_of.purity_z.sel(by="frequency")).all())  # each token once: one name, no spread, no z
    assert float(made_of.p_value.sel(by="frequency").min()) == 1


def test_p_values_of_chance_are_uniform() -> None:
    trace, found = gathered()
    rng = np.random.default_rng(1)
    chance = {f"{i}": words(rng.integers(0, 4, 30).tolist()) for i in range(150)}
    made_of = rs.purity(trace, found.isel(point=[0]), chance).isel(by=slice(2, None))
    for p in (made_of.p_value.values[0], made_of.p_value_anywhere.values):
        assert 0.4 < p.mean() < 0.75  # ties lie above
        assert (p <= 0.05).mean() < 0.1


def test_what_is_picked_as_a_maximum_is_compared_with_maxima() -> None:
    """Over many clusterings that have nothing to do with names, the purest is no find."""
    draw = torch.Generator().manual_seed(0)
    labels, names = torch.randint(0, 8, (20, 25), generator=draw), torch.randint(0, 3, (120, 25), generator=draw)
    found = kernel(labels, names, 59, 0)
    assert (found["p_value"][1:].amin(0) <= 0.05).double().mean() > 0.3
    assert (found["p_value_anywhere"] <= 0.05).double().mean() < 0.11


def test_tokens_told_twice_change_nothing() -> None:
    """The same points under the same types, each token twice: purity, null and p-values are those of types."""
    x, ids = random(1, 24, 3), [300 + i % 15 for i in range(24)]
    once, twice = (
        rs.purity(trace, rs.clusters(trace, angle=0.7, keep_massive=True), draws=30)
        for trace in (planted(x, ids), planted(torch.cat([x, x]), ids + ids))
    )
    for name in once.data_vars:
        assert np.allclose(once[name], twice[name], atol=1e-9, equal_nan=True), name
    assert once.by.values.tolist() == ["stem", "frequency"]


def test_a_name_is_given_to_a_word_as_it_is_or_bare_or_in_small_letters() -> None:
    trace = replace(planted(random(0, 5, 3)), tokens=[" The", "the", " keys", "Keys", "?"])
    made_of = rs.purity(trace, labels={"class": {"the": "article", "Keys": "noun", "keys": "plural"}}, draws=0)
    assert int(made_of.named.sel(by="class")) == 4
    assert made_of.named.values.tolist() == [5, 5, 4]


def test_types_without_a_name_are_left_out() -> None:
    label, names = torch.tensor([[0, 0, 1, 1, 2]]), torch.tensor([[0, 1, 1, NAMELESS, NAMELESS]])
    assert float(kernel(label, names, 0, 0)["purity"]) == pytest.approx(2 / 3)


@pytest.mark.parametrize("seed", range(5))
def test_purity_equals_a_count(seed: int) -> None:
    label, names = torch.randint(0, 5, (2, 40), generator=torch.Generator().manual_seed(seed))
    commonest = sum(max(Counter(names[label == c].tolist()).values()) for c in label.unique())
    assert float(cluster_purity(label, names[None])[0]) == pytest.approx(commonest / 40)
    assert float(cluster_purity(label, label[None])[0]) == 1


def test_clusters_of_another_text_or_model_are_refused() -> None:
    one, other = double("gpt2"), double("gpt2_by_depth")
    trace = one.trace(text())
    for mixed in (other.trace(text()), one.trace(text(1)), one.trace(text(n=9))):
        with pytest.raises(rs.RheoscopeError, match=r"clusters are those of the same text in the same model, got"):
            rs.purity(trace, rs.clusters(mixed))
    with pytest.raises(rs.RheoscopeError, match="got another weights; type"):
        rs.purity(trace, rs.density_clusters(other.trace(text())))
    assert rs.purity(trace, rs.clusters(trace)).purity.equals(rs.purity(trace).purity)


def test_names_that_no_token_has_are_refused() -> None:
    trace, found = gathered()
    with pytest.raises(
        rs.RheoscopeError, match=r"'class' names fewer than 2 tokens of this text \(1 words given\); type words"
    ):
        rs.purity(trace, found, {"class": {"elsewhere": "noun"}})
