"""Tests of `surgery`: the identity, losses from logits, controls, intervals, defaults and refused input."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator

import rheoscope as rs
from rheoscope.covers.comparison_arms import Comparisons
from rheoscope.covers.surgery.analysis import kernel
from rheoscope.covers.text_batches import split_into_windows
from tests.cases import CAUSAL, LENGTH, default, double, gap, model, ours, text, theirs, traced
from tests.laws.every_analysis import ODD, SORTS
from tests.laws.moves import assert_unchanged, distinct_tokens, gauges

F64 = torch.float64
GAUGED = ["qwen3", "gemma3", "own_biased"]
"""Gauges of the random controls. tests/laws/every_analysis.py covers the edit itself on all model sorts."""
TEXT = "The keys to the cabinet are on the table, and the man who has them went out to the garden."


@pytest.mark.parametrize("name", [*SORTS, *ODD, "own_metric"])
def test_identity_changes_no_bit(name: str) -> None:
    edited = rs.trace_under(model(name), text(), M="identity", F="identity")
    assert torch.equal(edited.points, traced(name).points)
    if model(name).view.unembed is not None:
        assert torch.equal(edited.logits, traced(name).logits)


@pytest.mark.parametrize("name", ["gpt2", "llama", "own"])
def test_the_model_is_unchanged_afterwards(name: str) -> None:
    before = [x.clone() for x in model(name).network.parameters()]
    rs.surgery(model(name), text(), M="symmetric", F="symmetric")
    assert all(torch.equal(a, b) for a, b in zip(before, model(name).network.parameters(), strict=True))
    assert torch.equal(model(name).run(text()), traced(name).logits)


@torch.no_grad()
def test_making_a_symmetric_head_symmetric_changes_nothing() -> None:
    """W_K = W_Q without RoPE gives M = Mᵀ. Its skew part is 0, so M="skew" changes the points."""

    def tie(network: Any) -> None:
        for block in rs.load(network).view.layer_heads:
            block.W_K.copy_(block.W_Q)

    tied = theirs.changed("gpt2", tie)
    edited, unedited = rs.trace_under(tied, text(), M="symmetric"), tied.trace(text())
    assert gap(edited.points, unedited.points) <= 1e-10
    assert gap(rs.trace_under(tied, text(), M="skew").points, unedited.points) > 1e-2


# The Dataset


def test_losses_kl_and_costs_equal_those_of_the_logits() -> None:
    network = model("llama")
    texts = [text(0), text(1, 7), text(2), text(3, 9), text(4)]
    layer_heads = network.view.head_indices(1)
    result = rs.surgery(network, texts, heads=layer_heads, M="symmetric", comparisons=rs.Comparisons(draws=2))
    assert result.attrs["heads"] == "L1.H0 L1.H1 L1.H2 L1.H3"
    assert result.tokens.values.tolist() == [LENGTH - 1, 6, LENGTH - 1, 8, LENGTH - 1]
    for index, ids in enumerate(texts):
        after = rs.trace_under(network, ids, heads=layer_heads, M="symmetric").logits.log_softmax(-1)
        before = network.run(ids).detach().log_softmax(-1)
        rows = torch.arange(len(ids) - 1)
        assert float(result.loss_before[index]) == pytest.approx(float(-before[rows, ids[1:]].mean()), abs=1e-5)
        assert float(result.loss_after[index]) == pytest.approx(float(-after[rows, ids[1:]].mean()), abs=1e-5)
        kl = (before.exp() * (before - after)).sum(-1).mean()
        assert float(result.kl[index]) == pytest.approx(float(kl), abs=1e-5)
    share = result.tokens / result.tokens.sum()
    assert result.excess.values == pytest.approx(float(result.cost[0]) - result.cost.values, abs=1e-9)
    assert bool((result.excess_low <= result.excess + 1e-9).all() & (result.excess <= result.excess_high + 1e-9).all())
    for name, loss in (("edit", result.loss_after), ("size", result.loss_control.sel(control="size"))):
        cost = float(((loss - result.loss_before) * share).sum())
        assert float(result.cost.sel(change=name)) == pytest.approx(cost, abs=1e-6)
        assert float(result.cost_low.sel(change=name)) <= cost + 1e-9
        assert float(result.cost_high.sel(change=name)) >= cost - 1e-9
    assert all("definition" in result[name].attrs for name in result.data_vars)


def test_the_seed_determines_the_random_controls() -> None:
    network = default()
    first, repeated, reseeded = (
        rs.surgery(
            network,
            split_into_windows(network, TEXT * 2, 12),
            heads=[(2, 1)],
            M="symmetric",
            comparisons=rs.Comparisons(("size",), seed=seed),
        )
        for seed in (0, 0, 1)
    )
    assert first.sizes["text"] > 3
    assert first.equals(repeated)
    assert first.loss_after.equals(reseeded.loss_after)
    assert not first.loss_control.equals(reseeded.loss_control)
    assert "texts" in first.attrs["intervals"]


def test_one_long_text_is_resampled_in_chunks_and_a_short_text_has_no_interval() -> None:
    network = default()
    long_text = rs.surgery(network, TEXT * 8, heads=[(2, 1)], M="symmetric", comparisons=rs.Comparisons(("mean",)))
    assert "chunks" in long_text.attrs["intervals"]
    assert "loss_control" not in long_text
    assert np.isfinite(long_text.cost_low.values).all()
    short_text = rs.surgery(network, TEXT, heads=[(2, 1)], M="symmetric", comparisons=rs.Comparisons(()))
    assert np.isnan(short_text.cost_low.values).all()
    assert "no interval" in short_text.attrs["intervals"]


def test_the_interval_has_the_width_of_a_normal_mean() -> None:
    rows = [
        {
            "before": torch.zeros(10),
            "edit": torch.randn(10, generator=Generator().manual_seed(seed), dtype=F64) + 1,
            "kl": 0.0,
        }
        for seed in range(400)
    ]
    result = kernel(rows, Comparisons((), seed=3))
    low, mean, high = (float(result[name][0]) for name in ("cost_low", "cost", "cost_high"))
    assert high - low == pytest.approx(2 * 1.96 / 4000**0.5, rel=0.15)
    assert low < mean < high


def test_the_default_makes_M_symmetric() -> None:
    network = double("llama")
    default_result, explicit_result = rs.surgery(network, text()), rs.surgery(network, text(), M="symmetric")
    assert default_result.equals(explicit_result)
    attributes = [default_result.attrs[name] for name in ("M", "F", "heads")]
    assert attributes == ["symmetric", "identity", "all"]
    assert rs.surgery(network, text(), F="rank 3").attrs["M"] == "identity"
    with pytest.raises(
        rs.RheoscopeError, match="an edit needs a replacement of M or F, got neither; type M='symmetric'"
    ):
        rs.trace_under(network, text())


def test_draws_0_leaves_out_the_random_controls() -> None:
    result = rs.surgery(double("llama"), text(), comparisons=rs.Comparisons(draws=0))
    assert result.change.values.tolist() == ["edit", "mean", "uniform"]
    assert "loss_control" not in result


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"M": "square"}, "unknown replacement of M: 'square', expected one of identity, symmetric"),
        ({"F": "skew"}, "unknown replacement of F: 'skew', expected one of identity, symmetric"),
        ({"M": "rank"}, "unknown replacement of M: 'rank'"),
        ({"M": "rank 99"}, "the rank of M must lie between 1 and 64 in this model, got 99; type M='rank 64'"),
        ({"F": "rank 0"}, "the rank of F must lie between 1 and 64 in this model, got 0"),
        ({"M": "symmetric", "heads": [(9, 0)]}, "there is no layer 9"),
        ({"M": "symmetric", "heads": [(0, 99)]}, "there is no head 99 in layer 0"),
        ({"heads": 2}, r"list of \(layer, head\), got 2; type heads=model.view.head_indices\(2\)"),
        ({"M": "symmetric", "heads": []}, "heads is empty"),
        ({"M": "positive"}, "under RoPE M is another form at every offset"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(rs.RheoscopeError, match=message) as error:
        rs.surgery(default(), TEXT, **settings)
    assert "\n" not in str(error.value)


def gpt2_without_unembedding() -> Any:
    from transformers import GPT2Config, GPT2Model

    return rs.load(GPT2Model(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=40)))


def test_models_and_texts_without_a_next_token_are_refused() -> None:
    with pytest.raises(
        rs.RheoscopeError, match=r"is bidirectional, so it predicts no next token .*; type rs.trace_under"
    ):
        rs.surgery(model("bert"), text(), M="symmetric")
    with pytest.raises(rs.RheoscopeError, match="has no unembedding, so it has no loss"):
        rs.surgery(gpt2_without_unembedding(), text(), M="symmetric")
    with pytest.raises(rs.RheoscopeError, match="a loss needs at least 2 tokens"):
        rs.surgery(model("gpt2"), [5], M="symmetric")
    with pytest.raises(rs.RheoscopeError, match="is not a bilinear form of its tokens"):
        rs.surgery(model("own_cosine"), text(), M="symmetric")
    assert "own_cosine" in CAUSAL
    assert ours.CASES["own_cosine"].mechanism == "cosine"


def surgery_of_five_texts(network: Any) -> Any:
    return rs.surgery(network, [distinct_tokens(), *(text(seed) for seed in range(2, 6))], M="symmetric", F="rank 3")


@pytest.mark.parametrize("name", GAUGED)
def test_no_gauge_changes_any_field(name: str) -> None:
    assert_unchanged(surgery_of_five_texts, surgery_of_five_texts(double(name)), name, gauges(name))
