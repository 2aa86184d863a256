"""Surgery: another M or F while the model runs, against dense forms in every family; controls, intervals, refusals."""

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
from tests.laws.moves import different, gauges, holds_still

F64 = torch.float64
GAUGED = ["qwen3", "gemma3", "own_biased"]
"""For the random controls: the edit itself is moved on every sort of model in tests/laws/every_analysis.py."""
TEXT = "The keys to the cabinet are on the table, and the man who has them went out to the garden."


@pytest.mark.parametrize("name", [*SORTS, *ODD, "own_metric"])
def test_identity_changes_no_bit(name: str) -> None:
    after = rs.trace_under(model(name), text(), M="identity", F="identity")
    assert torch.equal(after.points, traced(name).points)
    if model(name).view.unembed is not None:
        assert torch.equal(after.logits, traced(name).logits)


@pytest.mark.parametrize("name", ["gpt2", "llama", "own"])
def test_the_model_is_as_before(name: str) -> None:
    before = [x.clone() for x in model(name).network.parameters()]
    rs.surgery(model(name), text(), M="symmetric", F="symmetric")
    assert all(torch.equal(a, b) for a, b in zip(before, model(name).network.parameters(), strict=True))
    assert torch.equal(model(name).run(text()), traced(name).logits)


@torch.no_grad()
def test_a_symmetric_head_is_not_changed_by_being_made_symmetric() -> None:
    """Planted: W_K = W_Q without RoPE gives M = Mᵀ; its skew part is nothing, so that the rest alone is left."""

    def tie(network: Any) -> None:
        for block in rs.load(network).view.layer_heads:
            block.W_K.copy_(block.W_Q)

    tied = theirs.changed("gpt2", tie)
    trace, plain = rs.trace_under(tied, text(), M="symmetric"), tied.trace(text())
    assert gap(trace.points, plain.points) <= 1e-10
    assert gap(rs.trace_under(tied, text(), M="skew").points, plain.points) > 1e-2


# The Dataset


def test_losses_are_those_of_the_logits() -> None:
    of = model("llama")
    texts = [text(0), text(1, 7), text(2), text(3, 9), text(4)]
    layer = of.view.head_indices(1)
    found = rs.surgery(of, texts, heads=layer, M="symmetric", comparisons=rs.Comparisons(draws=2))
    assert found.attrs["heads"] == "L1.H0 L1.H1 L1.H2 L1.H3"
    assert found.tokens.values.tolist() == [LENGTH - 1, 6, LENGTH - 1, 8, LENGTH - 1]
    for at, ids in enumerate(texts):
        after = rs.trace_under(of, ids, heads=layer, M="symmetric").logits.log_softmax(-1)
        before = of.run(ids).detach().log_softmax(-1)
        rows = torch.arange(len(ids) - 1)
        assert float(found.loss_before[at]) == pytest.approx(float(-before[rows, ids[1:]].mean()), abs=1e-5)
        assert float(found.loss_after[at]) == pytest.approx(float(-after[rows, ids[1:]].mean()), abs=1e-5)
        kl = (before.exp() * (before - after)).sum(-1).mean()
        assert float(found.kl[at]) == pytest.approx(float(kl), abs=1e-5)
    share = found.tokens / found.tokens.sum()
    assert found.excess.values == pytest.approx(float(found.cost[0]) - found.cost.values, abs=1e-9)
    assert bool((found.excess_low <= found.excess + 1e-9).all() & (found.excess <= found.excess_high + 1e-9).all())
    for name, loss in (("edit", found.loss_after), ("size", found.loss_control.sel(control="size"))):
        cost = float(((loss - found.loss_before) * share).sum())
        assert float(found.cost.sel(change=name)) == pytest.approx(cost, abs=1e-6)
        assert float(found.cost_low.sel(change=name)) <= cost + 1e-9
        assert float(found.cost_high.sel(change=name)) >= cost - 1e-9
    assert all("definition" in found[name].attrs for name in found.data_vars)


def test_a_long_text_is_cut_and_the_seed_decides() -> None:
    of = default()
    one, same, other = (
        rs.surgery(
            of,
            split_into_windows(of, TEXT * 3, 16),
            heads=[(2, 1)],
            M="symmetric",
            comparisons=rs.Comparisons(("size",), seed=seed),
        )
        for seed in (0, 0, 1)
    )
    assert one.sizes["text"] > 3
    assert one.equals(same)
    assert one.loss_after.equals(other.loss_after)
    assert not one.loss_control.equals(other.loss_control)
    assert "texts" in one.attrs["bootstrap"]
    whole = rs.surgery(of, TEXT * 8, heads=[(2, 1)], M="symmetric", comparisons=rs.Comparisons(("mean",)))
    assert "chunks" in whole.attrs["bootstrap"]
    assert "loss_control" not in whole
    assert np.isfinite(whole.cost_low.values).all()
    assert np.isnan(
        rs.surgery(of, TEXT, heads=[(2, 1)], M="symmetric", comparisons=rs.Comparisons(())).cost_low.values
    ).all()


def test_the_interval_is_that_of_resampled_units() -> None:
    rows = [
        {
            "before": torch.zeros(10),
            "edit": torch.randn(10, generator=Generator().manual_seed(at), dtype=F64) + 1,
            "kl": 0.0,
        }
        for at in range(400)
    ]
    found = kernel(rows, Comparisons((), seed=3))
    low, mean, high = (float(found[name][0]) for name in ("cost_low", "cost", "cost_high"))
    assert high - low == pytest.approx(2 * 1.96 / 4000**0.5, rel=0.15)
    assert low < mean < high


def test_asked_of_its_subject_alone_it_makes_M_symmetric() -> None:
    of = double("llama")
    alone, named = rs.surgery(of, text()), rs.surgery(of, text(), M="symmetric")
    assert alone.equals(named)
    assert (alone.attrs["M"], alone.attrs["F"], alone.attrs["heads"]) == ("symmetric", "identity", "all")
    assert rs.surgery(of, text(), F="rank 3").attrs["M"] == "identity"
    with pytest.raises(rs.RheoscopeError, match="got neither; type M='symmetric'"):
        rs.trace_under(of, text())


def test_without_draws_there_is_no_random_control() -> None:
    found = rs.surgery(double("llama"), text(), comparisons=rs.Comparisons(draws=0))
    assert found.change.values.tolist() == ["edit", "mean", "uniform"]
    assert "loss_control" not in found


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"M": "square"}, "unknown replacement of M: 'square'; type one of identity, symmetric"),
        ({"F": "skew"}, "unknown replacement of F: 'skew'; type one of identity, symmetric"),
        ({"M": "rank"}, "unknown replacement of M: 'rank'"),
        ({"M": "rank 99"}, "the rank of M lies in 1 to 64 in this model, got 99; type M='rank 64'"),
        ({"F": "rank 0"}, "the rank of F lies in 1 to 64 in this model, got 0"),
        ({"M": "symmetric", "heads": [(9, 0)]}, "there is no layer 9"),
        ({"M": "symmetric", "heads": [(0, 99)]}, "there is no head 99 in layer 0"),
        ({"heads": 2}, r"list of \(layer, head\), got 2; type .* heads=model.view.head_indices\(2\) for a whole layer"),
        ({"M": "symmetric", "heads": []}, "no head to change"),
        ({"M": "positive"}, "under RoPE M is another form at every offset"),
    ],
)
def test_bad_input_is_told_in_one_line(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(rs.RheoscopeError, match=said) as error:
        rs.surgery(default(), TEXT, **asked)
    assert "\n" not in str(error.value)


def bare_gpt2() -> Any:
    from transformers import GPT2Config, GPT2Model

    return rs.load(GPT2Model(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=40)))


def test_models_and_texts_without_a_next_token_are_refused() -> None:
    with pytest.raises(rs.RheoscopeError, match="reads both ways, so it predicts no next token"):
        rs.surgery(model("bert"), text(), M="symmetric")
    with pytest.raises(rs.RheoscopeError, match="has no unembedding, so it has no loss"):
        rs.surgery(bare_gpt2(), text(), M="symmetric")
    with pytest.raises(rs.RheoscopeError, match="a loss needs at least 2 tokens"):
        rs.surgery(model("gpt2"), [5], M="symmetric")
    with pytest.raises(rs.RheoscopeError, match="is not a bilinear form of its tokens"):
        rs.surgery(model("own_cosine"), text(), M="symmetric")
    assert "own_cosine" in CAUSAL
    assert ours.CASES["own_cosine"].mechanism == "cosine"


def asked(of: Any) -> Any:
    return rs.surgery(of, [different(), *(text(seed) for seed in range(2, 6))], M="symmetric", F="rank 3")


@pytest.mark.parametrize("name", GAUGED)
def test_no_gauge_moves_any_number(name: str) -> None:
    holds_still(asked, asked(double(name)), name, gauges(name))
