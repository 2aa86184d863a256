"""The logit lens: the last step says what the model says, and every number equals a slow, obvious one."""

import pytest
import torch

import rheoscope as rs
from tests.pretrained.cases import WITH_LOGITS, double, gap, model, text, traced

F64 = torch.float64
DECODERS = [name for name in WITH_LOGITS if double(name).view.unembed is not None]


@pytest.mark.parametrize("name", DECODERS)
def test_the_last_step_predicts_what_the_model_predicts(name: str) -> None:
    trace = double(name).trace(text(), logits=True)
    assert trace.logits is not None
    for token in (-1, 2):
        lens = rs.readout(trace.view, trace, token=token, k=3)
        law = trace.logits[token].log_softmax(-1)
        assert int(lens["rank"][-1]) == 1
        assert lens.attrs["answer"] == int(law.argmax())
        assert float(lens.probability[-1]) == pytest.approx(float(law.exp().max()), abs=1e-6)
        assert gap(torch.as_tensor(lens.top_probabilities.values[-1]), law.exp().topk(3).values) <= 1e-6
        assert lens.attrs["token"] == token % len(trace)


def test_every_number_equals_a_slow_one() -> None:
    trace, step = traced("gpt2", F64), 3
    lens = rs.readout(trace.view, trace, token=1, answer=5)
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
    assert list(lens.point.values) == list(trace.steps)


def test_an_encoder_without_unembedding_is_refused() -> None:
    bare = model("bert_bare")
    with pytest.raises(
        rs.RheoscopeError, match="has no unembedding, so nothing can be read out; type a language model"
    ):
        rs.readout(bare.view, bare.trace(text()))


def test_an_answer_outside_the_vocabulary_is_refused() -> None:
    trace = traced("gpt2", F64)
    with pytest.raises(rs.RheoscopeError, match="a token id from 0 to"):
        rs.readout(trace.view, trace, answer=10**6)
