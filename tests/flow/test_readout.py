"""The logit lens: the last step says what the model says, and every number equals a slow, obvious one."""

import numpy as np
import pytest
import torch
import xarray as xr

import rheoscope as rs
from rheoscope.space.components import components
from rheoscope.statistics.nulls import p_values, random_successors
from tests import cases
from tests.models import test_encoder_decoder as linked
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
        law = trace.logits[token].log_softmax(-1)
        assert int(lens["rank"][-1]) == 1
        assert lens.attrs["target"] == int(law.argmax())
        assert float(lens.probability[-1]) == pytest.approx(float(law.exp().max()), abs=1e-6)
        assert gap(torch.as_tensor(lens.top_probabilities.values[-1]), law.exp().topk(3).values) <= 1e-6
        assert lens.attrs["token"] == token % len(trace)


def test_every_number_equals_a_slow_one() -> None:
    trace, step = traced("gpt2", F64), 3
    lens = rs.readout(trace, token=1, target=5)
    net = double("gpt2").network
    with torch.no_grad():
        p, last = (net.lm_head(net.transformer.ln_f(trace.points[at, 1])).softmax(-1) for at in (step, -1))
    assert float(lens.probability[step]) == pytest.approx(float(p[5]))
    assert int(lens["rank"][step]) == sum(float(one) > float(p[5]) for one in p) + 1
    assert float(lens.entropy[step]) == pytest.approx(-sum(float(one) * float(one.log()) for one in p))
    assert float(lens.kl[step]) == pytest.approx(
        sum(float(a) * float(a.log() - b.log()) for a, b in zip(last, p, strict=True)), abs=1e-9
    )
    assert float(lens.kl[-1]) == 0
    assert list(lens.point.values) == list(map(str, trace.steps))


def test_an_encoder_without_unembedding_is_refused() -> None:
    bare = model("bert_bare")
    with pytest.raises(rs.RheoscopeError, match="has no unembedding, so it predicts no tokens; use a language model"):
        rs.readout(bare.trace(text()))


def test_an_answer_and_a_token_that_are_not_there_are_refused() -> None:
    trace = traced("gpt2", F64)
    with pytest.raises(rs.RheoscopeError, match="a token id from 0 to"):
        rs.readout(trace, target=10**6)
    with pytest.raises(rs.RheoscopeError, match="there is no token 99; this text has tokens 0 to 17"):
        rs.readout(trace, token=99)


# Direct logit attribution


@pytest.mark.parametrize("name", UNEMBEDDING)
def test_the_attribution_sums_to_the_models_logit(name: str) -> None:
    trace = cases.traced(name, F64)
    cap = trace.view.logit_cap
    logits = trace.logits if cap is None else cap * torch.atanh(trace.logits / cap)
    for token, answer in ((-1, None), (4, 7)):
        lens = rs.readout(trace, token=token, target=answer)
        wanted = float(logits[token, lens.attrs["target"]] - logits[token].mean())
        within = 1e-6 if cap is not None or name in cases.theirs.ISLANDS else 1e-10
        assert float(lens.attribution.sum()) == pytest.approx(wanted, rel=within, abs=within)
        assert float(lens.logit) == pytest.approx(wanted, rel=within, abs=within)
    assert (cap is not None) == (name == "gemma3_capped")
    assert ("final_norm.bias" in lens.component) == (trace.view.final_norm.bias is not None)


def test_each_attribution_is_what_taking_the_component_away_does_with_the_scale_frozen() -> None:
    trace, token, answer = traced("gpt2", F64), 6, 11
    lens = rs.readout(trace, token=token, target=answer)
    net, made = double("gpt2").network, components(trace, tokens=[token])
    x = trace.points[-1, token]
    with torch.no_grad():
        std = (x.var(correction=0) + net.transformer.ln_f.eps).sqrt()

        def logit(y: torch.Tensor) -> float:
            """The final norm with the std of the whole point."""
            u = (y - y.mean()) / std * net.transformer.ln_f.weight + net.transformer.ln_f.bias
            every = net.lm_head(u)
            return float(every[answer] - every.mean())

        for name, part in zip(made.names, made.parts[:, 0], strict=True):
            lost = logit(x) - logit(x - part)
            assert float(lens.attribution.sel(component=name)) == pytest.approx(lost, abs=1e-9), name


@pytest.mark.parametrize("name", list(linked.CASES))
def test_the_target_of_a_pair_reads_the_source_into_its_logits(name: str) -> None:
    trace = linked.traced(name, F64).target
    lens = rs.readout(trace, token=3)
    wanted = trace.logits[3, lens.attrs["target"]] - trace.logits[3].mean()
    assert float(lens.attribution.sum()) == pytest.approx(float(wanted), abs=1e-6)
    assert "L1.cross.H3" in lens.component


def test_every_place_says_what_a_readout_of_it_says() -> None:
    trace = rs.load().trace("The keys to the cabinet are on the table in the hall, and the old cabinet is in it")
    lens = rs.readout(trace)
    assert lens.token.values.tolist() == list(range(len(trace) - 8, len(trace)))
    assert lens.end.values.tolist() == ["embed", *(f"L{layer}.resid_post" for layer in range(6))]
    for at in (0, 4, 7):
        alone = rs.readout(trace, token=int(lens.token[at])).sel(point=lens.end.values)
        assert lens.likeliest.values[:, at].tolist() == alone.top_tokens.values[:, 0].tolist()
        np.testing.assert_allclose(
            lens.likeliest_probability.values[:, at], alone.top_probabilities.values[:, 0], rtol=1e-5
        )
    first = rs.readout(trace, token=2)
    assert first.token.values.tolist() == [0, 1, 2]
    assert first.token_text.values.tolist() == trace.tokens[:3]


# Does it predict the text?


def test_the_next_token_of_earlier_places_equals_a_loop() -> None:
    trace = double("gpt2").trace(text(), logits=True)
    lens = rs.readout(trace, token=9, draws=6, seed=3)
    laws = trace.logits.log_softmax(-1)
    ids = trace.ids.tolist()
    wanted = [float(laws[at, ids[at + 1]]) for at in range(9)]
    assert lens.log_probability_next.values == pytest.approx(np.array(wanted), abs=1e-6)
    assert lens.largest_elsewhere.values == pytest.approx(laws[:9].amax(-1).detach().numpy(), abs=1e-6)
    drawn = [
        [float(laws[at, ids[to]]) for at, to in enumerate(order)] for order in random_successors(10, 6, 3).tolist()
    ]
    assert lens.log_probability_next_null.values == pytest.approx(np.mean(drawn, 0), abs=1e-6)
    assert lens.log_probability_next_null_sd.values == pytest.approx(np.std(drawn, 0, ddof=1), abs=1e-6)
    assert lens.log_probability_next_null_draws.values == pytest.approx(np.mean(drawn, 1), abs=1e-6)
    alone = rs.readout(trace, token=9, draws=0)
    assert not [name for name in alone if "null" in name or "drawn" in name]
    assert rs.readout(trace, token=0).log_probability_next.size == 0


def chance_of(lens: xr.Dataset) -> float:
    own = torch.tensor(float(lens.log_probability_next.mean()), dtype=F64)
    return float(p_values(own, torch.tensor(lens.log_probability_next_null_draws.values, dtype=F64)))


def test_a_text_is_predicted_beyond_chance_and_random_tokens_are_not() -> None:
    """Also by weights that predict each place's own token: no order of the text asks a place for itself."""
    model, raw = rs.load(), rs.load(untrained=True)
    assert chance_of(rs.readout(model.trace("The keys to the cabinet are on the table in the hall."))) <= 0.01
    draw = torch.Generator().manual_seed(0)
    noise = [torch.randint(300, 4000, (24,), generator=draw).tolist() for _ in range(20)]
    p = np.array([chance_of(rs.readout(raw.trace(ids), draws=39)) for ids in noise])
    assert (p <= 0.1).mean() <= 0.25
    assert (p <= 0.5).mean() >= 0.2


def test_an_encoder_is_not_asked_for_what_it_reads() -> None:
    lens = rs.readout(cases.double("own_encoder").trace(text()))
    assert "log_probability_next" not in lens
    assert lens.largest_elsewhere.size == len(text()) - 1
