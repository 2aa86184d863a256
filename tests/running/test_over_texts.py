"""over_texts: means and intervals equal NumPy's, the null bounds that of the mean, and wrong input raises one line."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import t as student_t

import rheoscope as rs
from rheoscope import catalogue
from rheoscope.covers.agreement.analysis import MEAN_FIELDS, random_rotation_pairs
from rheoscope.running import over_texts as over
from rheoscope.running.over_texts import (
    TEST_FIELDS,
    check_arguments,
    join_results,
    split_half,
)
from rheoscope.statistics.intervals import bootstrap_t_interval
from rheoscope.statistics.nulls import q_values
from tests.cases import double, text
from tests.covers.cases import random_model, trace_with_points
from tests.pretrained.cases import once, random

F64 = torch.float64


@once
def traces(texts: int = 5, name: str = "llama") -> list[Any]:
    return [double(name).trace(text(seed)) for seed in range(texts)]


@once
def results_per_text(draws: int = 6) -> list[Any]:
    return [rs.agreement(trace, draws=draws, min_keys=4) for trace in traces()]


@once
def joined(draws: int = 6) -> Any:
    return rs.over_texts(rs.agreement, traces(), draws=draws, min_keys=4)


def halves(texts: int, splits: int) -> list[torch.Tensor]:
    return [torch.randperm(texts, generator=torch.Generator().manual_seed(seed)) for seed in range(splits)]


def test_means_equal_numpy_and_lie_inside_their_intervals() -> None:
    results, result = results_per_text(), joined()
    for name in MEAN_FIELDS:
        assert np.allclose(result[name], np.mean([text_result[name] for text_result in results], 0)), name
        assert bool((result[f"{name}_low"] <= result[name]).all()), name
        assert bool((result[f"{name}_high"] >= result[name]).all()), name
        assert float((result[f"{name}_high"] - result[f"{name}_low"]).min()) > 0, name
        assert float(result.overall.sel(measure=name)) == pytest.approx(
            float(np.mean([text_result[name] for text_result in results]))
        )
    for name in ("null_mean", "null_sd", "queries"):
        assert np.allclose(result[name], np.mean([text_result[name] for text_result in results], 0)), name
    assert result.measure.values.tolist() == list(MEAN_FIELDS)
    assert result.attrs["left_out"] == ["z", "p_value", "q_value"]


def test_result_carries_definitions_and_provenance() -> None:
    result = joined()
    assert (result.attrs["analysis"], result.attrs["texts"], result.attrs["draws"]) == ("agreement", 5, 6)
    assert result.attrs["weights"] == traces()[0].view.facts["weights"]
    assert not {"text", "massive"} & set(result.attrs)
    assert result.agreement.attrs["definition"].startswith("mean over texts: partial Spearman correlation")
    assert result.agreement.attrs["null"] == "null_mean"
    assert "an upper bound" in result.null_sd.attrs["definition"]
    assert all("definition" in result[field].attrs for field in result.data_vars)
    assert "null" not in result.agreement_low.attrs


def test_z_and_q_values_are_those_of_the_mean() -> None:
    result = joined()
    z = (result.agreement - result.null_mean) / result.null_sd
    assert np.allclose(result.agreement_z, z)
    t = z.values / np.sqrt(1 + 1 / 6)
    assert np.allclose(result.agreement_q_value, q_values(torch.tensor(2 * student_t.sf(abs(t), 5))))
    null_draws = np.mean([text_result.mean_agreement_null_draws for text_result in results_per_text()], 0)
    assert np.allclose(result.mean_agreement_null_draws, null_draws)
    assert "mean_agreement_drawn_low" not in result
    assert "mean_agreement_low" in result


def test_intervals_are_those_of_the_texts_and_few_texts_say_why_they_have_none() -> None:
    agreement = torch.stack([torch.as_tensor(result.agreement.values) for result in results_per_text()], -1).double()
    low, high = bootstrap_t_interval(agreement)
    assert np.allclose(joined().agreement_low, low)
    assert np.allclose(joined().agreement_high, high)
    assert joined().attrs["intervals"] == "bootstrap-t, 1,999 resamples of 5 texts"
    few = rs.over_texts(rs.agreement, traces()[:3], draws=0, min_keys=4, splits=2)
    assert few.attrs["intervals"] == "no interval: 3 texts, at least 4 are needed"
    assert bool(few.agreement_low.isnull().all() & few.overall_high.isnull().all())


def test_order_of_texts_does_not_matter_and_copies_of_one_text_have_no_spread() -> None:
    forward, backward = joined(), rs.over_texts(rs.agreement, traces()[::-1], draws=6, min_keys=4)
    for name in (*MEAN_FIELDS, "null_mean", "null_sd", "agreement_z", "agreement_q_value"):
        assert np.allclose(forward[name], backward[name]), name
    again = rs.over_texts(rs.agreement, [traces()[0]] * 4, draws=6, min_keys=4)
    assert np.allclose(again.agreement_low, again.agreement_high)
    assert np.allclose(again.split_half, 1)
    assert np.allclose(again.agreement_z, results_per_text()[0].z)


def test_split_half_is_high_for_planted_heads_and_low_for_noise() -> None:
    planted = random(0, 1, 20, 20) + 0.1 * random(1, 6, 20, 20)
    assert float(split_half(planted, halves(6, 50))) > 0.95
    assert float(split_half(random(2, 6, 20, 20), halves(6, 50)).abs()) < 0.2
    for n in (2, 5, 6):
        means = [
            [planted[half].mean(0).flatten() for half in (order[: n // 2], order[n // 2 :])] for order in halves(n, 9)
        ]
        expected = np.mean([np.corrcoef(*pair)[0, 1] for pair in means])
        assert float(split_half(planted[:n], halves(n, 9))) == pytest.approx(expected)
    assert bool(split_half(torch.zeros(4, 2, 2, dtype=F64), halves(4, 3)).isnan())


def test_null_is_never_narrower_than_that_of_the_mean() -> None:
    """The sd of random heads' mean agreement, each head the same on all texts, is at most the mean of the sds."""
    model = random_model(heads=3, width=12)
    clouds = [trace_with_points(model, random(seed, 20, 12)) for seed in range(3)]
    result = rs.over_texts(rs.agreement, clouds, seed=2, draws=12)
    means = []
    for ((Q, R),) in random_rotation_pairs(model.view, 12, 2, torch.device("cpu")):
        for rotations in zip(Q, R, strict=True):
            view = rotated_view(model, *rotations)
            per_text = [rs.agreement(replace(trace, view=view), draws=0).agreement.values for trace in clouds]
            means.append(np.mean(per_text, 0))
    assert np.allclose(np.mean(means, 0), result.null_mean, atol=1e-6)
    assert bool((np.std(means, 0, ddof=1) <= result.null_sd.values + 1e-9).all())


def rotated_view(model: Any, Q: torch.Tensor, R: torch.Tensor) -> Any:
    """The same model with queries of clouds rotated by Q and keys of clouds rotated by R in its first layer."""
    heads = model.view.layer_heads[0]
    gain = heads.norm.gain

    def project(u: torch.Tensor) -> Any:
        x_hat = u / gain
        q, k, v = (heads.project((x_hat @ T.to(u)) * gain)[index] for index, T in enumerate((Q, R, torch.eye(len(Q)))))
        return q, k, v

    return replace(model.view, layer_heads=(replace(heads, project=project),))


def test_own_function_adds_a_control_and_needs_no_null() -> None:
    control = rs.load(double("llama").network, untrained=True)

    def agreement_with_control(trace: Any, min_keys: int = 4) -> Any:
        return rs.agreement(trace, draws=0, min_keys=min_keys, control=control.trace(trace.ids))

    result = rs.over_texts(agreement_with_control, traces()[:3], min_keys=5)
    results = [agreement_with_control(trace, min_keys=5) for trace in traces()[:3]]
    assert "agreement_z" not in result
    assert np.allclose(
        result.agreement_untrained, np.mean([text_result.agreement_untrained for text_result in results], 0)
    )
    assert "agreement_raw_untrained" in result.measure.values
    assert result.attrs["analysis"] == "agreement"


def test_layer_with_nan_in_one_text_stays_nan() -> None:
    results = [text_result.copy(deep=True) for text_result in results_per_text()]
    results[1].agreement[0] = float("nan")
    result = join_results(results, halves(5, 4), 0)
    assert bool(result.agreement[0].isnull().all())
    assert bool(result.agreement_low[0].isnull().all())
    assert bool(result.agreement[1].notnull().all())
    assert bool(result.split_half.notnull().all())


SETTINGS: dict[str, dict[str, Any]] = {
    "agreement": {"draws": 4, "min_keys": 4},
    "distortion": {"draws": 2, "n_neighbours": 3},
    "charts": {"draws": 2, "n_neighbours": 4},
    "heat": {"draws": 3, "times": (1, 4)},
    "stack": {"draws": 1},
    "transport": {"draws": 3},
    "clusters": {"draws": 2},
    "purity": {"draws": 3},
}
WITH_NULL = [
    name
    for name in catalogue.analysis_names()
    if catalogue.analysis_by_name(name).needs == "trace"
    and any(field.null for field in catalogue.analysis_by_name(name).fields.values())
]


@pytest.mark.parametrize("name", WITH_NULL)
def test_every_analysis_with_a_null_runs_over_texts(name: str) -> None:
    """Texts of different lengths: fields of tokens are left out, all others are means; fields with a null sd have z and q."""
    declaration = catalogue.analysis_by_name(name)
    sample_traces = [double("llama").trace(text(seed, n=n)) for seed, n in ((0, 18), (1, 15))]
    settings_of_analysis = {key: value for key, value in SETTINGS.get(name, {}).items() if key in declaration.settings}
    results = [declaration.ask(trace, **settings_of_analysis) for trace in sample_traces]
    result = rs.over_texts(declaration.ask, sample_traces, splits=4, **settings_of_analysis)
    assert result.attrs["analysis"] == name
    left_out = result.attrs["left_out"]
    joined_fields = [field for field in results[0].data_vars if field not in left_out]
    assert joined_fields
    for field in joined_fields:
        expected_mean = np.mean([text_result[field].values.astype(float) for text_result in results], 0)
        assert np.allclose(result[field], expected_mean, equal_nan=True), field
        assert result[field].dims == declaration.fields[str(field)].dims
        null, null_sd = declaration.fields[str(field)].null, declaration.fields[str(field)].null_sd
        has_test = bool(null) and bool(null_sd) and {null, null_sd} <= set(joined_fields)
        assert (f"{field}_z" in result) == (f"{field}_q_value" in result) == has_test, field
    for field in left_out:
        declared_field = declaration.fields[field]
        is_test = field in TEST_FIELDS or field.endswith(tuple(f"_{suffix}" for suffix in TEST_FIELDS))
        token_dims = set(declared_field.dims) & {"token", "pair", "type", "earlier_token"}
        assert is_test or results[0][field].dtype.kind not in "iuf" or token_dims, field


def test_wrong_arguments_raise_one_line() -> None:
    model = double("llama")
    with pytest.raises(
        rs.RheoscopeError, match=r"a list of at least 2 Traces, got 1 text; type rs.over_texts\(rs.agreement"
    ):
        rs.over_texts(rs.agreement, traces()[:1])
    for value, received in ((traces()[0], "Trace"), (["one", "two"], "list")):
        with pytest.raises(rs.RheoscopeError, match=f"a list of at least 2 Traces, got {received}; "):
            check_arguments(rs.agreement, value, 200, {})
    with pytest.raises(rs.RheoscopeError, match="splits must be at least 1, got 0"):
        rs.over_texts(rs.agreement, traces(), splits=0)
    with pytest.raises(rs.RheoscopeError, match="a function of one trace, but operators takes view; type"):
        rs.over_texts(rs.operators, traces())
    with pytest.raises(rs.RheoscopeError, match="head_types takes model, trace"):
        rs.over_texts(rs.head_types, traces())
    with pytest.raises(rs.RheoscopeError, match="'agreement' takes none"):
        rs.over_texts("agreement", traces())
    with pytest.raises(
        rs.RheoscopeError, match="agreement has no setting 'drws'; expected one of draws, seed, min_keys"
    ):
        rs.over_texts(rs.agreement, traces(), drws=3)
    control = rs.load(model.network, untrained=True)
    with pytest.raises(
        rs.RheoscopeError, match=r"all Traces must come from one model, but number 1 has weights .* and number 0 has "
    ):
        rs.over_texts(rs.agreement, [traces()[0], control.trace(text())])


@pytest.mark.parametrize("name", ["agreement", "energy", "geometry_kept", "scores", "head_statistics", "trajectory"])
def test_batched_texts_equal_texts_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = double("llama").trace([text(seed, n=n) for seed, n in ((0, 18), (1, 14), (2, 16))])
    declaration, original_split, batch_calls = catalogue.analysis_by_name(name), over.split_batch, list[str]()
    monkeypatch.setattr(over, "split_batch", lambda *args: batch_calls.append(name) or original_split(*args))
    settings_of_analysis = {key: value for key, value in SETTINGS.get(name, {}).items() if key in declaration.settings}
    result, alone = (
        rs.over_texts(getattr(rs, name), input_traces, splits=4, **settings_of_analysis)
        for input_traces in (batch, list(batch))
    )
    assert bool(batch_calls) == (name != "trajectory")  # whose fields are of tokens
    assert list(result.data_vars) == list(alone.data_vars)
    assert result.attrs["left_out"] == alone.attrs["left_out"]
    for field in alone.data_vars:
        np.testing.assert_allclose(result[field], alone[field], rtol=1e-5, atol=1e-7, err_msg=str(field))
    assert {"analysis", "texts", "model"} <= set(result.attrs) <= set(alone.attrs)
