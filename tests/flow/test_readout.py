"""Tests of readout: the logit lens, direct logit attribution, and the prediction of the text."""

import numpy as np
import pytest
import torch
import xarray as xr

import rheoscope as rs
from rheoscope.flow.readout import analysis
from rheoscope.space import predictions
from rheoscope.space.components import components
from rheoscope.space.view import View
from rheoscope.statistics.nulls import p_values, random_successors
from tests import cases
from tests.models import test_encoder_decoder as linked
from tests.pictures.cases import small
from tests.pretrained import cases as theirs
from tests.pretrained.cases import double, gap, model, text, traced

F64 = torch.float64
DECODERS = theirs.CAUSAL
UNEMBEDDING = [*DECODERS, *cases.ours.EVERY]


@pytest.mark.parametrize("name", DECODERS)
def test_the_last_step_predicts_what_the_model_predicts(name: str) -> None:
    trace = double(name).trace(text(), logits=True)
    assert trace.logits is not None
    for token in (-1, 2):
        lens = rs.readout(trace, token=token, top=3)
        expected = trace.logits[token].log_softmax(-1)
        assert int(lens["rank"][-1]) == 1
        assert lens.attrs["target"] == int(expected.argmax())
        assert float(lens.probability[-1]) == pytest.approx(float(expected.exp().max()), abs=1e-6)
        assert gap(torch.as_tensor(lens.top_probabilities.values[-1]), expected.exp().topk(3).values) <= 1e-6
        assert lens.attrs["token"] == token % len(trace)


def test_every_field_equals_a_slow_computation() -> None:
    trace, step = traced("gpt2", F64), 3
    lens = rs.readout(trace, token=1, target=5)
    net = double("gpt2").network
    with torch.no_grad():
        p, last = (net.lm_head(net.transformer.ln_f(trace.points[index, 1])).softmax(-1) for index in (step, -1))
    assert float(lens.probability[step]) == pytest.approx(float(p[5]))
    assert int(lens["rank"][step]) == sum(float(p_token) > float(p[5]) for p_token in p) + 1
    assert float(lens.entropy[step]) == pytest.approx(-sum(float(p_token) * float(p_token.log()) for p_token in p))
    assert float(lens.kl[step]) == pytest.approx(
        sum(float(a) * float(a.log() - b.log()) for a, b in zip(last, p, strict=True)), abs=1e-9
    )
    assert float(lens.kl[-1]) == 0
    assert list(lens.point.values) == list(map(str, trace.steps))


def test_an_encoder_without_unembedding_raises_an_error() -> None:
    encoder = model("bert_bare")
    with pytest.raises(rs.RheoscopeError, match="has no unembedding, so it predicts no tokens; use a language model"):
        rs.readout(encoder.trace(text()))


def test_invalid_target_and_token_raise_an_error() -> None:
    trace = traced("gpt2", F64)
    with pytest.raises(rs.RheoscopeError, match=r"target must be a token id between 0 and \d+, got 1000000"):
        rs.readout(trace, target=10**6)
    with pytest.raises(rs.RheoscopeError, match="there is no token 99; this text has tokens 0 to 17"):
        rs.readout(trace, token=99)


# Direct logit attribution


@pytest.mark.parametrize("name", UNEMBEDDING)
def test_the_attribution_sums_to_the_models_logit(name: str) -> None:
    trace = cases.traced(name, F64)
    cap = trace.view.logit_cap
    logits = trace.logits if cap is None else cap * torch.atanh(trace.logits / cap)
    for token, target in ((-1, None), (4, 7)):
        lens = rs.readout(trace, token=token, target=target)
        expected_logit = float(logits[token, lens.attrs["target"]] - logits[token].mean())
        within = 1e-6 if cap is not None or name in cases.theirs.ISLANDS else 1e-10
        assert float(lens.attribution.sum()) == pytest.approx(expected_logit, rel=within, abs=within)
        assert float(lens.logit_above_mean) == pytest.approx(expected_logit, rel=within, abs=within)
        own_logit = float(trace.logits[token, lens.attrs["target"]])
        assert float(lens.logit) == pytest.approx(own_logit, rel=within, abs=within)
    assert (cap is not None) == (name == "gemma3_capped")
    assert ("final_norm.bias" in lens.component) == (trace.view.final_norm.bias is not None)


def test_each_attribution_equals_the_effect_of_removing_the_component_at_fixed_scale() -> None:
    trace, token, target = traced("gpt2", F64), 6, 11
    lens = rs.readout(trace, token=token, target=target)
    net, residual_parts = double("gpt2").network, components(trace, tokens=[token])
    x = trace.points[-1, token]
    with torch.no_grad():
        std = (x.var(correction=0) + net.transformer.ln_f.eps).sqrt()

        def logit(y: torch.Tensor) -> float:
            """The logit with the standard deviation of the full point in the final norm."""
            u = (y - y.mean()) / std * net.transformer.ln_f.weight + net.transformer.ln_f.bias
            logits = net.lm_head(u)
            return float(logits[target] - logits.mean())

        for name, part in zip(residual_parts.names, residual_parts.parts[:, 0], strict=True):
            lost = logit(x) - logit(x - part)
            assert float(lens.attribution.sel(component=name)) == pytest.approx(lost, abs=1e-9), name


@pytest.mark.parametrize("name", list(linked.CASES))
def test_attribution_of_a_decoder_includes_cross_attention(name: str) -> None:
    trace = linked.traced(name, F64).target
    lens = rs.readout(trace, token=3)
    expected_logit = trace.logits[3, lens.attrs["target"]] - trace.logits[3].mean()
    assert float(lens.attribution.sum()) == pytest.approx(float(expected_logit), abs=1e-6)
    assert "L1.cross.H3" in lens.component


@pytest.mark.parametrize("name", list(linked.CASES))
def test_what_a_decoder_reads_from_the_source(name: str) -> None:
    """A slow twin: displacements by cross-attention from the points before and after it."""
    trace = linked.traced(name, F64).target
    lens = rs.readout(trace, token=3)
    path = float(trace.points[:, 3].diff(dim=0).norm(dim=-1).sum())
    total = 0.0
    for layer in range(trace.view.layers):
        after = next(index for index, step in enumerate(trace.steps) if step.layer == layer and step.is_cross)
        update = trace.points[after, 3] - trace.points[after - 1, 3]
        total += float(update.norm()) / path
        for head, displacement in enumerate(trace.cross_attention_parts(layer)[0]):
            row = lens.sel(cross_head=f"L{layer}.cross.H{head}")
            np.testing.assert_allclose(row.source_weight.values, trace.cross_weights(layer, head)[3], atol=1e-12)
            share = float(displacement[3] @ update / update.norm()) / path
            assert float(row.source_path_share) == pytest.approx(share, abs=1e-9)
    assert float(lens.cross_path_share) == pytest.approx(total, abs=1e-9)
    assert lens.source_text.values.tolist() == linked.traced(name, F64).source.tokens


def test_predictions_by_position_equal_single_readouts() -> None:
    trace = rs.load().trace("The keys to the cabinet are on the table in the hall, and the old cabinet is in it")
    lens = rs.readout(trace)
    assert lens.token.values.tolist() == list(range(len(trace) - 8, len(trace)))
    assert lens.end.values.tolist() == ["embed", *(f"L{layer}.resid_post" for layer in range(6))]
    for index in (0, 4, 7):
        single = rs.readout(trace, token=int(lens.token[index])).sel(point=lens.end.values)
        assert lens.predicted_token.values[:, index].tolist() == single.top_tokens.values[:, 0].tolist()
        np.testing.assert_allclose(
            lens.predicted_probability.values[:, index], single.top_probabilities.values[:, 0], rtol=1e-5
        )
    early = rs.readout(trace, token=2)
    assert early.token.values.tolist() == [0, 1, 2]
    assert early.token_text.values.tolist() == trace.tokens[:3]


# Prediction of the text


def test_the_unembedding_of_a_large_vocabulary_is_read_for_many_points_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traced("gpt2", F64)
    ends, positions = [0, *(index for index, step in enumerate(trace.steps) if step.is_end_of_layer)], [0, 2, 3]
    expected = [
        predictions.next_token_logprobs(trace.view, trace.points[end, [token]])[0]
        for end in ends
        for token in positions
    ]
    sizes: list[int] = []

    def next_token_logprobs(view: View, points: torch.Tensor) -> torch.Tensor:
        sizes.append(len(points))
        return predictions.next_token_logprobs(view, points)

    monkeypatch.setattr(analysis, "block_numel", lambda device: 1)
    monkeypatch.setattr(analysis, "next_token_logprobs", next_token_logprobs)
    likeliest = analysis.likeliest_tokens(trace, ends, positions)
    assert sizes == [len(expected)]
    assert likeliest["predicted_token"].flatten().tolist() == [int(row.argmax()) for row in expected]
    assert (
        gap(likeliest["predicted_probability"].flatten(), torch.stack([row.max() for row in expected]).exp()) <= 1e-12
    )


def test_log_probabilities_of_next_tokens_equal_a_loop() -> None:
    trace = double("gpt2").trace(text(), logits=True)
    lens = rs.readout(trace, token=9, draws=6, seed=3)
    log_probs = trace.logits.log_softmax(-1)
    ids = trace.ids.tolist()
    expected = [float(log_probs[index, ids[index + 1]]) for index in range(9)]
    assert lens.log_probability_next.values == pytest.approx(np.array(expected), abs=1e-6)
    assert lens.predicted_log_probability.values == pytest.approx(log_probs[:9].amax(-1).detach().numpy(), abs=1e-6)
    samples = [
        [float(log_probs[index, ids[to]]) for index, to in enumerate(order)]
        for order in random_successors(10, 6, 3).tolist()
    ]
    assert lens.log_probability_next_null.values == pytest.approx(np.mean(samples, 0), abs=1e-6)
    assert lens.log_probability_next_null_sd.values == pytest.approx(np.std(samples, 0, ddof=1), abs=1e-6)
    assert lens.log_probability_next_null_draws.values == pytest.approx(np.mean(samples, 1), abs=1e-6)
    without_null = rs.readout(trace, token=9, draws=0)
    assert not [name for name in without_null if "null" in name]
    assert rs.readout(trace, token=0).log_probability_next.size == 0


def p_value_of(lens: xr.Dataset) -> float:
    observed = torch.tensor(float(lens.log_probability_next.mean()), dtype=F64)
    return float(p_values(observed, torch.tensor(lens.log_probability_next_null_draws.values, dtype=F64)))


def test_a_text_is_predicted_better_than_chance_and_random_tokens_are_not() -> None:
    """The null never asks a position for its own token, so an untrained model shows no effect."""
    model, untrained = rs.load(), small()
    assert p_value_of(rs.readout(model.trace("The keys to the cabinet are on the table in the hall."))) <= 0.01
    generator = torch.Generator().manual_seed(0)
    random_texts = [torch.randint(300, 4000, (24,), generator=generator).tolist() for _ in range(20)]
    p = np.array([p_value_of(rs.readout(untrained.trace(ids), draws=39)) for ids in random_texts])
    assert (p <= 0.1).mean() <= 0.25
    assert (p <= 0.5).mean() >= 0.2


def test_an_encoder_has_no_log_probability_next() -> None:
    lens = rs.readout(cases.double("own_encoder").trace(text()))
    assert "log_probability_next" not in lens
    assert lens.predicted_log_probability.size == len(text()) - 1
