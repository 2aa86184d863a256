"""Tests of `surgery(per_head=True)`: every head costs what surgery of that head alone costs."""

from typing import Any

import numpy as np
import pytest
import torch

import rheoscope as rs
from tests.cases import default, double, model, text, traced
from tests.covers.cases import random_model
from tests.laws.moves import assert_unchanged, gauges

TEXTS = [text(0), text(1, 9), text(2), text(3, 9), text(4)]
ONE_BATCH = [text(seed) for seed in range(5)]
"""Texts of one length run together, for tests that do not concern batches."""
SOME = ["gpt2", "gemma3", "neox", "own_sink", "own_alibi", "own_metric"]
DETERMINISTIC = ["edit", "mean", "uniform"]
"""Changes without random draws."""


def surgery_per_head(network: Any, texts: Any, **settings: Any) -> Any:
    return rs.surgery(network, texts, per_head=True, **settings)


@pytest.mark.parametrize(("name", "layer", "head"), [(name, i % 2, 1 + 2 * (i % 2)) for i, name in enumerate(SOME)])
def test_every_head_costs_what_surgery_of_it_alone_costs(name: str, layer: int, head: int) -> None:
    network = double(name)
    comparisons = rs.Comparisons(("size", "mean", "uniform"))
    result = surgery_per_head(
        network, TEXTS, heads=[(0, 1), (1, 3)], M="symmetric", F="rank 3", comparisons=comparisons
    )
    single = rs.surgery(network, TEXTS, heads=[(layer, head)], M="symmetric", F="rank 3", comparisons=comparisons)
    head_result = result.sel(layer=layer, head=head)
    for field in ("cost", "cost_low", "cost_high", "excess", "excess_low", "excess_high"):
        expected = single[field].sel(change=DETERMINISTIC).values
        values = head_result[f"head_{field}"].sel(change=DETERMINISTIC).values
        assert values == pytest.approx(expected, abs=2e-5), field
    loss_after = (head_result.head_cost_by_text.sel(change="edit") + result.loss_before).values
    assert loss_after == pytest.approx(single.loss_after.values, abs=2e-5)
    assert abs(float(head_result.head_cost.sel(change="size") - head_result.head_cost.sel(change="edit"))) > 1e-7
    assert result.loss_before.values == pytest.approx(single.loss_before.values, abs=1e-6)
    assert result.tokens.values.tolist() == single.tokens.values.tolist()


def test_the_cost_of_a_head_does_not_depend_on_the_other_selected_heads() -> None:
    network = double("llama")
    all_heads = surgery_per_head(network, ONE_BATCH, M="symmetric")
    assert bool(all_heads.head_cost.notnull().all())
    layer_heads = network.view.head_indices(1)
    for selection in ([(1, 2)], layer_heads):
        result = surgery_per_head(network, ONE_BATCH, heads=selection, M="symmetric")
        is_selected = result.head_cost.notnull()
        assert int(is_selected.sum()) == 3 * len(selection)
        for field in ("head_cost", "head_excess_low"):
            assert np.allclose(result[field].values[is_selected], all_heads[field].values[is_selected], atol=1e-12)
    reseeded = surgery_per_head(
        network, ONE_BATCH, heads=layer_heads, M="symmetric", comparisons=rs.Comparisons(("size",), seed=1)
    )
    costs, reseeded_costs = all_heads.head_cost.sel(layer=1), reseeded.head_cost.sel(layer=1)
    assert np.allclose(reseeded_costs.sel(change="edit"), costs.sel(change="edit"))
    assert not np.allclose(reseeded_costs.sel(change="size"), costs.sel(change="size"))


def test_totals_are_sums_over_heads_and_intervals_contain_the_mean() -> None:
    network = double("gpt2")
    result = surgery_per_head(network, TEXTS, M="symmetric", comparisons=rs.Comparisons(("size",), draws=2))
    assert result.total_cost.values == pytest.approx(result.head_cost.sum(("layer", "head")).values)
    assert result.total_excess.values == pytest.approx(result.head_excess.sum(("layer", "head")).values)
    assert result.head_excess.sel(change="edit").values == pytest.approx(0)
    share = result.tokens / result.tokens.sum()
    assert result.head_cost.values == pytest.approx((result.head_cost_by_text * share).sum("text").values)
    for name in ("head_cost", "head_excess", "total_cost", "total_excess"):
        low, mean, high = (result[name + end].values for end in ("_low", "", "_high"))
        assert (low <= mean + 1e-12).all()
        assert (mean <= high + 1e-12).all()
    assert (result.total_cost_high > result.total_cost_low).sum() == 2
    assert "texts" in result.attrs["intervals"]
    assert all("definition" in result[name].attrs for name in result.data_vars)


def test_the_bootstrap_of_few_texts_resamples_chunks() -> None:
    network, long_text = random_model(heads=2, depth=2), text(0, 190)
    settings: dict[str, Any] = {"heads": [(1, 1)], "M": "symmetric", "comparisons": rs.Comparisons(())}
    result, single = surgery_per_head(network, long_text, **settings), rs.surgery(network, long_text, **settings)
    assert "chunks" in result.attrs["intervals"]
    assert result.sizes["text"] == 1
    for field in ("cost", "cost_low", "cost_high"):
        value = float(result[f"head_{field}"].sel(layer=1, head=1)[0])
        assert value == pytest.approx(float(single[field][0]), abs=1e-6)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_identity_costs_nothing_and_the_model_is_unchanged(name: str) -> None:
    network, steps = model(name), []
    before = [x.clone() for x in network.network.parameters()]
    result = surgery_per_head(
        network,
        ONE_BATCH,
        M="identity",
        F="identity",
        comparisons=rs.Comparisons(()),
        progress=lambda *step: steps.append(step),
    )
    assert (result.head_cost.values == 0).all()
    assert steps[-1] == (5, 5)
    surgery_per_head(network, TEXTS[:2], heads=[(0, 1), (1, 2)], M="symmetric", F="symmetric")
    assert all(torch.equal(a, b) for a, b in zip(before, network.network.parameters(), strict=True))
    assert torch.equal(network.run(text()), traced(name).logits)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"M": "square"}, "unknown replacement of M: 'square'"),
        ({"heads": 2}, r"list of \(layer, head\), got 2; type"),
        ({"M": "symmetric", "heads": [(0, 99)]}, "there is no head 99 in layer 0"),
        ({"M": "symmetric", "heads": []}, "heads is empty"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(rs.RheoscopeError, match=message) as error:
        surgery_per_head(default(), "The keys to the cabinet", **settings)
    assert "\n" not in str(error.value)


def test_bidirectional_models_are_refused() -> None:
    with pytest.raises(
        rs.RheoscopeError, match=r"is bidirectional, so it predicts no next token .*; type rs.trace_under"
    ):
        surgery_per_head(model("bert"), text(), M="symmetric")


def test_the_default_makes_every_M_symmetric() -> None:
    result = surgery_per_head(double("gpt2"), text())
    assert result.change.values.tolist() == ["edit", "size", "cloud"]
    assert (result.attrs["M"], result.attrs["per_head"]) == ("symmetric", 1)
    assert result.head_cost.shape == (3, 2, 4)
    assert "cost" not in result


@pytest.mark.parametrize("name", ["gpt2_by_depth", "qwen3"])
def test_no_gauge_changes_any_field(name: str) -> None:
    def run(network: Any) -> Any:
        return surgery_per_head(network, ONE_BATCH, heads=[(0, 1), (1, 3)], M="symmetric", F="rank 3")

    assert_unchanged(run, run(double(name)), name, gauges(name))
