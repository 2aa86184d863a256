"""Several texts: means and intervals equal NumPy's, one null bounds the mean's, halves tell the same heads apart, bad input in a line."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student_t

import rheoscope as rs
from rheoscope import catalogue
from rheoscope.covers.agreement.analysis import MEANS, turns
from rheoscope.running import over_texts as over
from rheoscope.running.over_texts import TESTED, drawn, interval, joined, refuse, split_half
from rheoscope.statistics.nulls import q_values
from tests.cases import double, text
from tests.covers.cases import bare, on
from tests.pretrained.cases import once, random

F64 = torch.float64


@once
def traces(texts: int = 5, name: str = "llama") -> list[Any]:
    return [double(name).trace(text(seed)) for seed in range(texts)]


@once
def of_texts(draws: int = 6) -> list[Any]:
    return [rs.agreement(trace, draws=draws, least=4) for trace in traces()]


@once
def together(draws: int = 6) -> Any:
    return rs.over_texts(rs.agreement, traces(), draws=draws, least=4)


def halves(texts: int, splits: int) -> list[torch.Tensor]:
    return [torch.randperm(texts, generator=torch.Generator().manual_seed(seed)) for seed in range(splits)]


def test_means_are_means_and_ends_enclose_them() -> None:
    each, found = of_texts(), together()
    for name in MEANS:
        assert np.allclose(found[name], np.mean([one[name] for one in each], 0)), name
        assert bool((found[f"{name}_low"] <= found[name]).all()), name
        assert bool((found[f"{name}_high"] >= found[name]).all()), name
        assert float((found[f"{name}_high"] - found[f"{name}_low"]).min()) > 0, name
        assert float(found.overall.sel(measure=name)) == pytest.approx(float(np.mean([one[name] for one in each])))
    for name in ("null_mean", "null_sd", "queries"):
        assert np.allclose(found[name], np.mean([one[name] for one in each], 0)), name
    assert found.measure.values.tolist() == list(MEANS)
    assert found.attrs["left_out"] == ["z", "p_value", "q_value"]


def test_it_says_what_it_is_of_what() -> None:
    found = together()
    assert (found.attrs["analysis"], found.attrs["texts"], found.attrs["draws"]) == ("agreement", 5, 6)
    assert found.attrs["weights"] == traces()[0].view.facts["weights"]
    assert not {"text", "massive"} & set(found.attrs)
    assert found.agreement.attrs["definition"].startswith("mean over texts: mean over queries of Spearman's")
    assert found.agreement.attrs["null"] == "null_mean"
    assert "a bound from above" in found.null_sd.attrs["definition"]
    assert all("definition" in found[field].attrs for field in found.data_vars)
    assert "null" not in found.agreement_low.attrs


def test_z_and_q_are_those_of_the_mean() -> None:
    found = together()
    z = (found.agreement - found.null_mean) / found.null_sd
    assert np.allclose(found.agreement_z, z)
    t = z.values / np.sqrt(1 + 1 / 6)
    assert np.allclose(found.agreement_q_value, q_values(torch.tensor(2 * student_t.sf(abs(t), 5))))
    drawn = np.mean([one.mean_agreement_drawn for one in of_texts()], 0)
    assert np.allclose(found.mean_agreement_drawn, drawn)
    assert "mean_agreement_drawn_low" not in found
    assert "mean_agreement_low" in found


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
    assert np.allclose(interval(weights, x[:, 0, 0]), slow[:, 0, 0])  # a single number of each text
    wide = random(seed, texts, 1025)  # more than are taken at a time
    assert torch.allclose(interval(weights, wide)[:, -1:], interval(weights, wide[:, -1:]))


def test_an_interval_covers_a_planted_mean_as_often_as_it_says() -> None:
    """40 texts, so that percentiles are not too narrow; 300 heads, each a normal law around its own mean."""
    mean = random(0, 300)
    generator = torch.Generator().manual_seed(1)
    low, high = interval(drawn(40, 2000, generator), mean + random(2, 40, 300))
    inside = ((low <= mean) & (mean <= high)).double().mean()
    assert float(inside) == pytest.approx(0.95, abs=0.03)


def test_the_order_of_texts_does_not_matter_and_one_text_again_and_again_is_sure() -> None:
    one, other = together(), rs.over_texts(rs.agreement, traces()[::-1], draws=6, least=4)
    for name in (*MEANS, "null_mean", "null_sd", "agreement_z", "agreement_q_value"):
        assert np.allclose(one[name], other[name]), name
    again = rs.over_texts(rs.agreement, [traces()[0]] * 3, draws=6, least=4)
    assert np.allclose(again.agreement_low, again.agreement_high)
    assert np.allclose(again.split_half, 1)
    assert np.allclose(again.agreement_z, of_texts()[0].z)


def test_halves_tell_planted_heads_apart_and_noise_not() -> None:
    planted = random(0, 1, 20, 20) + 0.1 * random(1, 6, 20, 20)
    assert float(split_half(planted, halves(6, 50))) > 0.95
    assert float(split_half(random(2, 6, 20, 20), halves(6, 50)).abs()) < 0.2
    for n in (2, 5, 6):
        means = [[planted[some].mean(0).flatten() for some in (at[: n // 2], at[n // 2 :])] for at in halves(n, 9)]
        slow = np.mean([np.corrcoef(*two)[0, 1] for two in means])
        assert float(split_half(planted[:n], halves(n, 9))) == pytest.approx(slow)
    assert bool(split_half(torch.zeros(4, 2, 2, dtype=F64), halves(4, 3)).isnan())


def test_its_null_is_never_narrower_than_that_of_the_mean() -> None:
    """The sd of random heads' mean agreement, each head the same on all texts, is at most the mean of the sds."""
    model = bare(heads=3, width=12)
    some = [on(model, random(seed, 20, 12)) for seed in range(4)]
    found = rs.over_texts(rs.agreement, some, seed=2, draws=40)
    means = []
    for Q, R in turns(12, 40, 2, torch.device("cpu")):
        for turned in zip(Q, R, strict=True):
            view = turned_view(model, *turned)
            of_one = [rs.agreement(replace(trace, view=view), draws=0).agreement.values for trace in some]
            means.append(np.mean(of_one, 0))
    assert np.allclose(np.mean(means, 0), found.null_mean, atol=1e-6)
    assert bool((np.std(means, 0, ddof=1) <= found.null_sd.values + 1e-9).all())


def turned_view(model: Any, Q: torch.Tensor, R: torch.Tensor) -> Any:
    """The same model whose first layer reads queries of clouds turned by Q and keys of clouds turned by R."""
    heads = model.view.blocks[0]
    gain = heads.norm.gain

    def project(u: torch.Tensor) -> Any:
        hat = u / gain
        q, k, v = (heads.project((hat @ T.to(u)) * gain)[at] for at, T in enumerate((Q, R, torch.eye(len(Q)))))
        return q, k, v

    return replace(model.view, blocks=(replace(heads, project=project),))


def test_without_a_null_there_is_none_and_a_function_of_ones_own_brings_the_control_of_each_text() -> None:
    control = rs.load(double("llama").network, untrained=True)

    def controlled(trace: Any, least: int = 4) -> Any:
        return rs.agreement(trace, draws=0, least=least, control=control.trace(trace.ids))

    found = rs.over_texts(controlled, traces()[:3], least=5)
    each = [controlled(trace, least=5) for trace in traces()[:3]]
    assert "agreement_z" not in found
    assert np.allclose(found.agreement_untrained, np.mean([one.agreement_untrained for one in each], 0))
    assert "agreement_raw_untrained" in found.measure.values
    assert found.attrs["analysis"] == "agreement"


def test_a_layer_that_one_text_cannot_answer_stays_without_answer() -> None:
    each = [one.copy(deep=True) for one in of_texts()]
    each[1].agreement[0] = float("nan")
    found = joined(each, drawn(5, 20, torch.Generator().manual_seed(0)), halves(5, 4))
    assert bool(found.agreement[0].isnull().all())
    assert bool(found.agreement_low[0].isnull().all())
    assert bool(found.agreement[1].notnull().all())
    assert bool(found.split_half.notnull().all())


SETTINGS: dict[str, dict[str, Any]] = {
    "agreement": {"draws": 4, "least": 4},
    "distortion": {"draws": 2, "nearest": 3},
    "charts": {"draws": 2, "nearest": 4},
    "heat": {"draws": 3, "times": (1, 4)},
    "stack": {"draws": 1},
    "transport": {"draws": 3},
    "clusters": {"draws": 2},
    "purity": {"draws": 3},
}
WITH_NULL = [
    name
    for name in catalogue.names()
    if catalogue.analysis(name).needs == "trace"
    and any(field.null for field in catalogue.analysis(name).fields.values())
]


@pytest.mark.parametrize("name", WITH_NULL)
def test_every_analysis_with_a_null_can_be_asked_of_several_texts(name: str) -> None:
    """Texts of different lengths: fields of tokens are left out, all others are means; those with a spread have z and q."""
    declared = catalogue.analysis(name)
    some = [double("llama").trace(text(seed, n=n)) for seed, n in ((0, 18), (1, 18), (2, 15))]
    with_settings = {key: value for key, value in SETTINGS.get(name, {}).items() if key in declared.settings}
    each = [declared.ask(trace, **with_settings) for trace in some]
    found = rs.over_texts(declared.ask, some, resamples=20, splits=4, **with_settings)
    assert found.attrs["analysis"] == name
    left_out = found.attrs["left_out"]
    joined_fields = [field for field in each[0].data_vars if field not in left_out]
    assert joined_fields
    for field in joined_fields:
        wanted = np.mean([one[field].values.astype(float) for one in each], 0)
        assert np.allclose(found[field], wanted, equal_nan=True), field
        assert found[field].dims == declared.fields[str(field)].dims
        null, spread = declared.fields[str(field)].null, declared.fields[str(field)].null_sd
        beside = bool(null) and bool(spread) and {null, spread} <= set(joined_fields)
        assert (f"{field}_z" in found) == (f"{field}_q_value" in found) == beside, field
    for field in left_out:
        own = declared.fields[field]
        tested = field in TESTED or field.endswith(tuple(f"_{one}" for one in TESTED))
        ragged = set(own.dims) & {"token", "pair", "type", "elsewhere"}
        assert tested or each[0][field].dtype.kind not in "iuf" or ragged, field


def test_what_it_cannot_do_is_told_in_one_line() -> None:
    model = double("llama")
    with pytest.raises(
        rs.RheoscopeError, match=r"2 Traces or more, .* got 1 texts, .*; type rs.over_texts\(rs.agreement"
    ):
        rs.over_texts(rs.agreement, traces()[:1])
    for wrong, came in ((traces()[0], "Trace"), (["one", "two"], "list")):
        with pytest.raises(rs.RheoscopeError, match=f"2 Traces or more, .* got {came}, "):
            refuse(rs.agreement, wrong, 2000, 200, {})
    with pytest.raises(rs.RheoscopeError, match="resamples=0"):
        rs.over_texts(rs.agreement, traces(), resamples=0)
    with pytest.raises(rs.RheoscopeError, match="a function of one trace, and operators is about: view; type"):
        rs.over_texts(rs.operators, traces())
    with pytest.raises(rs.RheoscopeError, match="head_types is about: model, trace"):
        rs.over_texts(rs.head_types, traces())
    with pytest.raises(rs.RheoscopeError, match="'agreement' is about: none"):
        rs.over_texts("agreement", traces())
    with pytest.raises(rs.RheoscopeError, match="agreement has no setting 'drws'; type one of draws, seed, least"):
        rs.over_texts(rs.agreement, traces(), drws=3)
    control = rs.load(model.network, untrained=True)
    with pytest.raises(
        rs.RheoscopeError, match=r"one model: number 1 was made by weights .*; type Traces of the same model"
    ):
        rs.over_texts(rs.agreement, [traces()[0], control.trace(text())])


@pytest.mark.parametrize("name", ["agreement", "energy", "geometry_kept", "scores", "head_statistics", "trajectory"])
def test_texts_of_one_batch_are_asked_at_once_and_say_what_they_say_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = double("llama").trace([text(seed, n=n) for seed, n in ((0, 18), (1, 14), (2, 16))])
    declared, own, at_once = catalogue.analysis(name), over.at_once, list[str]()
    monkeypatch.setattr(over, "at_once", lambda *given: at_once.append(name) or own(*given))
    with_settings = {key: value for key, value in SETTINGS.get(name, {}).items() if key in declared.settings}
    found, alone = (
        rs.over_texts(getattr(rs, name), some, resamples=20, splits=4, **with_settings) for some in (batch, list(batch))
    )
    assert bool(at_once) == (name != "trajectory")  # whose fields are of tokens
    assert list(found.data_vars) == list(alone.data_vars)
    assert found.attrs["left_out"] == alone.attrs["left_out"]
    for field in alone.data_vars:
        np.testing.assert_allclose(found[field], alone[field], rtol=1e-5, atol=1e-7, err_msg=str(field))
    assert {"analysis", "texts", "model"} <= set(found.attrs) <= set(alone.attrs)
