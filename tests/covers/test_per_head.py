"""Surgery of each head alone: each head as if it were asked for alone, whatever is reused and whoever else is asked for."""

from typing import Any

import numpy as np
import pytest
import torch

import rheoscope as rs
from tests.cases import default, double, model, text, traced
from tests.laws.moves import gauges, holds_still

TEXTS = [text(0), text(1, 9), text(2), text(3, 9), text(4)]
SOME = ["gpt2", "llama", "gemma3", "neox", "own_sink", "own_alibi", "own_metric"]
EVERY = ["edit", "mean", "uniform"]
"""Changes that draw nothing."""


def each(of: Any, texts: Any, **asked: Any) -> Any:
    return rs.surgery(of, texts, per_head=True, **asked)


@pytest.mark.parametrize("name", SOME)
def test_every_head_costs_what_surgery_of_it_alone_costs(name: str) -> None:
    of = double(name)
    against = rs.Against(("size", "mean", "uniform"))
    found = each(of, TEXTS, heads=[(0, 1), (1, 3)], M="symmetric", F="rank 3", against=against)
    for layer, head in ((0, 1), (1, 3)):
        alone = rs.surgery(of, TEXTS, heads=[(layer, head)], M="symmetric", F="rank 3", against=against)
        here = found.sel(layer=layer, head=head)
        for field in ("cost", "cost_low", "cost_high", "excess", "excess_low", "excess_high"):
            wanted = alone[field].sel(change=EVERY).values
            assert here[f"head_{field}"].sel(change=EVERY).values == pytest.approx(wanted, abs=2e-5), field
        after = (here.head_cost_by_text.sel(change="edit") + found.loss_before).values
        assert after == pytest.approx(alone.loss_after.values, abs=2e-5)
        assert abs(float(here.head_cost.sel(change="size") - here.head_cost.sel(change="edit"))) > 1e-7
    assert found.loss_before.values == pytest.approx(alone.loss_before.values, abs=1e-6)
    assert found.tokens.values.tolist() == alone.tokens.values.tolist()


def test_a_head_does_not_depend_on_which_others_are_asked_for() -> None:
    of = double("llama")
    every = each(of, TEXTS, M="symmetric")
    assert bool(every.head_cost.notnull().all())
    layer = of.view.head_indices(1)
    for some in ([(1, 2)], layer):
        found = each(of, TEXTS, heads=some, M="symmetric")
        there = found.head_cost.notnull()
        assert int(there.sum()) == 3 * len(some)
        for field in ("head_cost", "head_excess_low"):
            assert np.allclose(found[field].values[there], every[field].values[there], atol=1e-12)
    other = each(of, TEXTS, heads=layer, M="symmetric", against=rs.Against(("size",), seed=1))
    assert np.allclose(other.head_cost.sel(layer=1, change="edit"), every.head_cost.sel(layer=1, change="edit"))
    assert not np.allclose(other.head_cost.sel(layer=1, change="size"), every.head_cost.sel(layer=1, change="size"))


def test_draws_are_a_mean_and_totals_are_sums() -> None:
    of = double("gpt2")
    found = each(of, TEXTS, M="symmetric", against=rs.Against(("size", "cloud"), draws=2))
    assert found.total_cost.values == pytest.approx(found.head_cost.sum(("layer", "head")).values)
    assert found.total_excess.values == pytest.approx(found.head_excess.sum(("layer", "head")).values)
    assert found.head_excess.sel(change="edit").values == pytest.approx(0)
    share = found.tokens / found.tokens.sum()
    assert found.head_cost.values == pytest.approx((found.head_cost_by_text * share).sum("text").values)
    for name in ("head_cost", "head_excess", "total_cost", "total_excess"):
        low, mean, high = (found[name + end].values for end in ("_low", "", "_high"))
        assert (low <= mean + 1e-12).all()
        assert (mean <= high + 1e-12).all()
    assert (found.total_cost_high > found.total_cost_low).sum() == 3
    assert "texts" in found.attrs["bootstrap"]
    assert all("definition" in found[name].attrs for name in found.data_vars)


def test_few_texts_are_drawn_in_chunks() -> None:
    of, words = (
        default(),
        "The keys to the cabinet are on the table, and the man who has them went out to the garden. " * 9,
    )
    asked: dict[str, Any] = {"heads": [(2, 1)], "M": "symmetric", "against": rs.Against(())}
    found, alone = each(of, words, **asked), rs.surgery(of, words, **asked)
    assert "chunks" in found.attrs["bootstrap"]
    assert found.sizes["text"] == 1
    for field in ("cost", "cost_low", "cost_high"):
        assert float(found[f"head_{field}"].sel(layer=2, head=1)[0]) == pytest.approx(float(alone[field][0]), abs=1e-6)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_identity_costs_nothing_and_the_model_is_as_before(name: str) -> None:
    of, told = model(name), []
    before = [x.clone() for x in of.network.parameters()]
    found = each(of, TEXTS, M="identity", F="identity", against=rs.Against(()), progress=lambda *at: told.append(at))
    assert (found.head_cost.values == 0).all()
    assert told[-1] == (5, 5)
    each(of, TEXTS[:2], M="symmetric", F="symmetric")
    assert all(torch.equal(a, b) for a, b in zip(before, of.network.parameters(), strict=True))
    assert torch.equal(of.run(text()), traced(name).logits)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"M": "square"}, "unknown replacement of M: 'square'"),
        ({"heads": 2}, r"list of \(layer, head\), got 2; type"),
        ({"M": "symmetric", "heads": [(0, 99)]}, "there is no head 99 in layer 0"),
        ({"M": "symmetric", "heads": []}, "no head to change"),
    ],
)
def test_bad_input_is_told_in_one_line(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(rs.RheoscopeError, match=said) as error:
        each(default(), "The keys to the cabinet", **asked)
    assert "\n" not in str(error.value)
    with pytest.raises(rs.RheoscopeError, match="reads both ways, so it predicts no next token"):
        each(model("bert"), text(), M="symmetric")


def test_asked_of_its_subject_alone_it_makes_every_M_symmetric() -> None:
    found = each(double("gpt2"), text())
    assert found.change.values.tolist() == ["edit", "size", "cloud"]
    assert (found.attrs["M"], found.attrs["per_head"]) == ("symmetric", 1)
    assert found.head_cost.shape == (3, 2, 4)
    assert "cost" not in found


@pytest.mark.parametrize("name", ["gpt2_by_depth", "qwen3"])
def test_no_gauge_moves_any_number(name: str) -> None:
    def asked(of: Any) -> Any:
        return each(of, TEXTS, heads=[(0, 1), (1, 3)], M="symmetric", F="rank 3")

    holds_still(asked, asked(double(name)), name, gauges(name))
