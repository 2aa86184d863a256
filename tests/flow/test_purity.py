"""Tests of purity: planted labels, uniform p-values under the null, counts against a loop, repeated tokens."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.flow.purity.analysis import UNLABELLED, cluster_purity, kernel
from tests.cases import double, text
from tests.flow.test_clusters import planted
from tests.pretrained.cases import random

F64 = torch.float64


def planted_clusters(n: int = 30):
    """Tokens w0, w1, … in three clusters, with every third token in the same cluster."""
    centres = torch.eye(3, dtype=F64)[torch.arange(n) % 3] * 10
    trace = replace(planted(centres + 0.1 * random(0, n, 3)), tokens=[f" w{i}" for i in range(n)])
    return trace, rs.clusters(trace, angle=0.5)


def labels_of(names: list[int]) -> dict[str, object]:
    return {f"w{i}": name for i, name in enumerate(names)}


def test_without_draws_there_is_no_null() -> None:
    trace, clustering = planted_clusters()
    without_null, with_null = rs.purity(trace, clustering, draws=0), rs.purity(trace, clustering, draws=3)
    assert list(without_null.data_vars) == ["purity", "labelled_types", "same_label_pairs"]
    assert np.array_equal(without_null.purity, with_null.purity)


def test_planted_labels_are_pure_and_random_labels_are_not() -> None:
    trace, clustering = planted_clusters()
    rng = np.random.default_rng(0)
    labels = {"planted": labels_of([i % 3 for i in range(30)]), "random": labels_of(rng.integers(0, 3, 30).tolist())}
    result = rs.purity(trace, clustering, labels)
    assert float(result.purity.sel(by="planted").min()) == 1
    assert float(result.p_value.sel(by="planted").max()) == pytest.approx(1 / 201)
    assert float(result.p_value_anywhere.sel(by="planted")) == pytest.approx(1 / 201)
    assert float(result.purity_z.sel(by="planted").min()) > 5
    assert float(result.p_value.sel(by="random").min()) > 0.01
    # every token occurs once, so there is one frequency label and no spread
    assert bool(np.isnan(result.purity_z.sel(by="frequency")).all())
    assert float(result.p_value.sel(by="frequency").min()) == 1


def test_p_values_of_random_labels_are_uniform() -> None:
    trace, clustering = planted_clusters()
    rng = np.random.default_rng(1)
    random_labels = {f"{i}": labels_of(rng.integers(0, 4, 30).tolist()) for i in range(150)}
    result = rs.purity(trace, clustering.isel(point=[0]), random_labels).isel(by=slice(2, None))
    for p in (result.p_value.values[0], result.p_value_anywhere.values):
        assert 0.4 < p.mean() < 0.75  # ties make the p-values conservative
        assert (p <= 0.05).mean() < 0.1


def test_p_value_anywhere_compares_maxima_with_maxima() -> None:
    """The largest purity over many unrelated clusterings is not significant."""
    generator = torch.Generator().manual_seed(0)
    labels, names = (
        torch.randint(0, 8, (20, 25), generator=generator),
        torch.randint(0, 3, (120, 25), generator=generator),
    )
    result = kernel(labels, names, 59, 0)
    assert (result["p_value"][1:].amin(0) <= 0.05).double().mean() > 0.3
    assert (result["p_value_anywhere"] <= 0.05).double().mean() < 0.11


def test_repeated_tokens_change_nothing() -> None:
    """The same points and types with every token twice give the same purity, null and p-values."""
    x, ids = random(1, 24, 3), [300 + i % 15 for i in range(24)]
    single, doubled = (
        rs.purity(trace, rs.clusters(trace, angle=0.7, keep_massive=True), draws=30)
        for trace in (planted(x, ids), planted(torch.cat([x, x]), ids + ids))
    )
    for name in single.data_vars:
        assert np.allclose(single[name], doubled[name], atol=1e-9, equal_nan=True), name
    assert single.by.values.tolist() == ["stem", "frequency"]


def test_labels_match_exactly_without_space_or_in_lower_case() -> None:
    trace = replace(planted(random(0, 5, 3)), tokens=[" The", "the", " keys", "Keys", "?"])
    result = rs.purity(trace, labels={"class": {"the": "article", "Keys": "noun", "keys": "plural"}}, draws=0)
    assert int(result.labelled_types.sel(by="class")) == 4
    assert result.labelled_types.values.tolist() == [5, 5, 4]


def test_types_without_a_label_are_left_out() -> None:
    label, names = torch.tensor([[0, 0, 1, 1, 2]]), torch.tensor([[0, 1, 1, UNLABELLED, UNLABELLED]])
    assert float(kernel(label, names, 0, 0)["purity"]) == pytest.approx(2 / 3)


@pytest.mark.parametrize("seed", range(5))
def test_purity_equals_a_count_of_the_most_common_labels(seed: int) -> None:
    label, names = torch.randint(0, 5, (2, 40), generator=torch.Generator().manual_seed(seed))
    expected = sum(max(Counter(names[label == c].tolist()).values()) for c in label.unique())
    assert float(cluster_purity(label, names[None])[0]) == pytest.approx(expected / 40)
    assert float(cluster_purity(label, label[None])[0]) == 1


def test_clusters_of_another_text_or_model_raise_an_error() -> None:
    first_model, second_model = double("gpt2"), double("gpt2_by_depth")
    trace = first_model.trace(text())
    for other_trace in (second_model.trace(text()), first_model.trace(text(1)), first_model.trace(text(n=9))):
        with pytest.raises(
            rs.RheoscopeError, match=r"clusters must belong to the same (text|model) as the trace, got clusters of"
        ):
            rs.purity(trace, rs.clusters(other_trace))
    with pytest.raises(rs.RheoscopeError, match=r"got clusters of other weights; type clusters=rs.clusters\(trace\)"):
        rs.purity(trace, rs.density_clusters(second_model.trace(text())))
    assert rs.purity(trace, rs.clusters(trace)).purity.equals(rs.purity(trace).purity)


def test_labels_that_match_no_token_raise_an_error() -> None:
    trace, clustering = planted_clusters()
    with pytest.raises(
        rs.RheoscopeError,
        match=r"the labels 'class' must match at least 2 tokens of this text, such as .*; 1 words were given",
    ):
        rs.purity(trace, clustering, {"class": {"elsewhere": "noun"}})
