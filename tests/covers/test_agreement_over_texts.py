"""Several texts: means and intervals equal NumPy's, one null bounds the mean's, halves tell the same heads apart, bad input in a line."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rheoscope as rs
from rheoscope.covers.agreement import MEANS, beside_null, rotations
from rheoscope.covers.agreement_over_texts import drawn, interval, split_half
from tests.cases import double, text
from tests.covers.cases import bare, on
from tests.pretrained.cases import once, random

F64 = torch.float64


@once
def of_texts(draws: int = 6, texts: int = 5, **more: Any) -> list[Any]:
    model = double("llama")
    return [rs.agreement(model.view, model.trace(text(seed)), draws=draws, least=4, **more) for seed in range(texts)]


def test_means_are_means_and_ends_enclose_them() -> None:
    each, found = of_texts(), rs.agreement_over_texts(of_texts())
    for name in MEANS:
        assert np.allclose(found[name], np.mean([one[name] for one in each], 0)), name
        assert bool((found[f"{name}_low"] <= found[name]).all()), name
        assert bool((found[f"{name}_high"] >= found[name]).all()), name
        assert float((found[f"{name}_high"] - found[f"{name}_low"]).min()) > 0, name
        assert float(found.overall.sel(measure=name)) == pytest.approx(float(np.mean([one[name] for one in each])))
    for name in ("null_mean", "null_sd"):
        assert np.allclose(found[name], np.mean([one[name] for one in each], 0)), name
    assert np.allclose(found.queries, sum(one.queries for one in each))
    assert (found.attrs["analysis"], found.attrs["texts"]) == ("agreement", 5)
    assert "text" not in found.attrs


@given(seed=st.integers(0, 1000), texts=st.integers(2, 6))
@settings(max_examples=20)
def test_the_bootstrap_is_numpys(seed: int, texts: int) -> None:
    """The same draws of texts, one after the other."""
    x = random(seed, texts, 3, 4)
    generator = torch.Generator().manual_seed(seed)
    weights = drawn(texts, 40, generator)
    chosen = torch.randint(texts, (40, texts), generator=torch.Generator().manual_seed(seed)).numpy()
    slow = np.percentile([x.numpy()[some].mean(0) for some in chosen], [2.5, 97.5], axis=0)
    assert np.allclose(interval(weights, x), slow)
    wide = random(seed, texts, 1025)  # more than are taken at a time
    assert torch.allclose(interval(weights, wide)[:, -1:], interval(weights, wide[:, -1:]))


def test_an_interval_covers_a_planted_mean_as_often_as_it_says() -> None:
    """40 texts, so that percentiles are not too narrow; 300 heads, each a normal law around its own mean."""
    mean = random(0, 300)
    generator = torch.Generator().manual_seed(1)
    low, high = interval(drawn(40, 2000, generator), mean + random(2, 40, 300))
    inside = ((low <= mean) & (mean <= high)).double().mean()
    assert float(inside) == pytest.approx(0.95, abs=0.03)


@settings(max_examples=4)
@given(seed=st.integers(0, 1000))
def test_the_order_of_texts_does_not_matter_and_one_text_again_and_again_is_sure(seed: int) -> None:
    each = of_texts()
    order = np.random.default_rng(seed).permutation(len(each))
    one, other = rs.agreement_over_texts(each), rs.agreement_over_texts([each[at] for at in order])
    for name in (*MEANS, "null_mean", "null_sd", "z", "q_value"):
        assert np.allclose(one[name], other[name]), name
    again = rs.agreement_over_texts([each[0]] * 3)
    assert np.allclose(again.agreement_low, again.agreement_high)
    assert np.allclose(again.split_half, 1)
    assert np.allclose(again.z, each[0].z)


def test_halves_tell_planted_heads_apart_and_noise_not() -> None:
    generator = torch.Generator().manual_seed(0)
    planted = random(0, 1, 2, 20, 20) + 0.1 * random(1, 6, 2, 20, 20)
    assert float(split_half(planted, 50, generator).min()) > 0.95
    assert float(split_half(random(2, 6, 1, 20, 20), 50, generator).abs()) < 0.2
    one, other = planted[:1], planted[1:2]
    slow = np.corrcoef(one[0, 0].flatten(), other[0, 0].flatten())[0, 1]
    assert float(split_half(planted[:2], 3, generator)[0]) == pytest.approx(slow)
    assert bool(split_half(torch.zeros(4, 1, 2, 2, dtype=F64), 3, generator).isnan())


def test_its_null_is_never_narrower_than_that_of_the_mean() -> None:
    """The sd of random heads' mean agreement, each head the same on all texts, is at most the mean of the sds."""
    model = bare(heads=3, width=12)
    traces = [on(model, random(seed, 20, 12)) for seed in range(4)]
    found = rs.agreement_over_texts([rs.agreement(model.view, trace, draws=40, seed=2) for trace in traces])
    means = []
    for Q, R in rotations(12, 40, 2, torch.device("cpu")):
        for turned in zip(Q, R, strict=True):
            view = turned_view(model, *turned)
            means.append(np.mean([rs.agreement(view, trace, draws=0).agreement.values for trace in traces], 0))
    assert np.allclose(np.mean(means, 0), found.null_mean, atol=1e-6)
    assert bool((np.std(means, 0, ddof=1) <= found.null_sd.values + 1e-9).all())
    told = beside_null(*(torch.tensor(found[name].values) for name in ("agreement", "null_mean", "null_sd")))
    assert np.allclose(told["z"], found.z)


def turned_view(model: Any, Q: torch.Tensor, R: torch.Tensor) -> Any:
    """The same model whose first layer reads queries of clouds turned by Q and keys of clouds turned by R."""
    heads = model.view.blocks[0]
    gain = heads.norm.gain

    def project(u: torch.Tensor) -> Any:
        hat = u / gain
        q, k, v = (heads.project((hat @ T.to(u)) * gain)[at] for at, T in enumerate((Q, R, torch.eye(len(Q)))))
        return q, k, v

    return replace(model.view, blocks=(replace(heads, project=project),))


def test_without_a_null_there_is_none_and_the_control_is_joined_too() -> None:
    model, control = double("llama"), rs.load(double("llama").network, untrained=True)
    each = [
        rs.agreement(model.view, model.trace(text(seed)), draws=0, least=4, control=control.trace(text(seed)))
        for seed in range(3)
    ]
    found = rs.agreement_over_texts(each)
    assert "z" not in found
    assert np.allclose(found.agreement_untrained, np.mean([one.agreement_untrained for one in each], 0))
    assert "agreement_raw_untrained" in found.measure.values
    assert len(rs.plot(found).axes) == 6


def test_a_layer_that_one_text_cannot_answer_stays_without_answer() -> None:
    each = [one.copy(deep=True) for one in of_texts()]
    each[1].agreement[0] = float("nan")
    found = rs.agreement_over_texts(each)
    assert bool(found.agreement[0].isnull().all())
    assert bool(found.agreement_low[0].isnull().all())
    assert bool(found.agreement[1].notnull().all())
    assert bool(found.split_half.notnull().all())


def test_what_it_cannot_do_is_told_in_one_line() -> None:
    model, each = double("llama"), of_texts()
    with pytest.raises(rs.RheoscopeError, match=r"2 or more, .* got 1 texts, .*; type \[rs.agreement"):
        rs.agreement_over_texts(each[:1])
    with pytest.raises(rs.RheoscopeError, match="resamples=0"):
        rs.agreement_over_texts(each, resamples=0)
    with pytest.raises(rs.RheoscopeError, match="number 1 is no agreement on one text"):
        rs.agreement_over_texts([each[0], rs.operators(model.view)])
    with pytest.raises(rs.RheoscopeError, match="number 1 is no agreement on one text"):
        rs.agreement_over_texts([each[0], rs.agreement_over_texts(each)])
    with pytest.raises(rs.RheoscopeError, match="number 0 is no agreement on one text"):
        rs.agreement_over_texts(["one", "two"])
    other = rs.agreement(model.view, model.trace(text(7)), draws=8, least=4)
    with pytest.raises(rs.RheoscopeError, match="draws is 8 for number 1 and 6 for number 0; type the same draws"):
        rs.agreement_over_texts([each[0], other])
    control = rs.load(model.network, untrained=True)
    strange = rs.agreement(control.view, control.trace(text()), draws=6, least=4)
    with pytest.raises(rs.RheoscopeError, match=r"model is .*untrained"):
        rs.agreement_over_texts([each[0], strange])
