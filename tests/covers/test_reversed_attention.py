"""Tests of `reversed_attention`: autograd in every family, sums of R, a planted head, targets and refused input."""

import pytest
import torch

import rheoscope as rs
from rheoscope.covers.reversed_attention.analysis import inner_token_ids
from rheoscope.models.config import Config
from rheoscope.models.transformer import build
from tests.cases import double, ours, text, theirs, traced
from tests.covers.cases import autograd_gradient, writable

F64 = torch.float64
EVERY = [*theirs.WITH_LOGITS, *ours.EVERY]


@pytest.mark.parametrize("name", EVERY)
def test_R_is_the_gradient_of_the_scores(name: str) -> None:
    model, trace = double(name), traced(name, F64)
    for layer, head, position in ((0, 1, -1), (model.view.layers - 1, 0, 4)):
        R = rs.reversed_map(model, trace, layer, head, target=7, token=position)
        expected = autograd_gradient(model, text(), layer, head, 7, position)
        assert float((R - expected).norm()) <= 1e-5 * float(expected.norm()) + 1e-12


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "neox", "opt_post"])
def test_fields_are_norms_and_column_sums_of_R_and_its_rows_sum_to_0(name: str) -> None:
    model, trace = double(name), traced(name, F64)
    result = rs.reversed_attention(model, trace, target=3)
    logits = model.run(text()).detach()
    assert float(result.loss) == pytest.approx(float(-logits[-1].log_softmax(-1)[3]))
    for layer, head in ((0, 0), (1, 2)):
        R = rs.reversed_map(model, trace, layer, head, target=3)
        assert float(result.norm.sel(layer=layer, head=head)) == pytest.approx(float(R.norm()))
        assert result.gradient_abs_sum.sel(layer=layer, head=head).values == pytest.approx(R.abs().sum(0).numpy())
        assert result.gradient_sum.sel(layer=layer, head=head).values == pytest.approx(R.sum(0).numpy(), abs=1e-12)
        assert float(R.sum(-1).abs().max()) < 1e-12
        assert float(R.triu(1).abs().max()) == 0
    ranks = result["rank"].values.ravel()
    assert sorted(ranks) == list(range(1, result.norm.size + 1))
    assert result.norm.values.ravel()[ranks.argmin()] == result.norm.values.max()


def test_the_default_target_is_the_prediction_and_frozen_weights_give_the_same_norms() -> None:
    model = rs.load()
    trace = model.trace("The keys to the cabinet are")
    prediction = int(model.run(trace.ids)[-1].argmax())
    default, explicit = rs.reversed_attention(model, trace), rs.reversed_attention(model, trace, target=prediction)
    assert default.attrs["target"] == prediction
    assert default.norm.equals(explicit.norm)
    for parameter in model.network.parameters():
        parameter.requires_grad_(False)
    assert rs.reversed_attention(model, trace).norm.equals(default.norm)
    with torch.no_grad():
        assert rs.reversed_attention(model, trace).norm.equals(default.norm)


@pytest.mark.parametrize("head", range(4))
def test_a_planted_copying_head_has_rank_1(head: int) -> None:
    """The target occurs in the text, and one of the untrained heads copies it to the last token."""
    torch.manual_seed(head)
    network = build(Config(vocabulary=40, width=32, depth=2, heads=4, tied=False))
    model, ids = writable(rs.load(network)), torch.tensor([5, 30, 6, 7, 8])
    block = model.view.layer_heads[1]
    with torch.no_grad():
        block.W_V[head].copy_(block.norm.apply(model.trace(ids).layer_input(1))[1, :, None] / 32 * torch.eye(1, 8))
        block.W_O[head].copy_(torch.eye(8, 1) * 3 * model.view.unembed[:, 30] / model.view.unembed[:, 30].norm())
    result = rs.reversed_attention(model, model.trace(ids), target=30)
    assert int(result["rank"].sel(layer=1, head=head)) == 1
    assert int(result.gradient_abs_sum.sel(layer=1, head=head).values.argmax()) == 1
    R = rs.reversed_map(model, model.trace(ids), 1, head, target=30)
    assert int(result.gradient_sum.sel(layer=1, head=head).values.argmin()) == 1
    assert float(R[-1, 1]) < 0  # a higher score of the target's token lowers the loss


def test_discontinuous_weights_are_refused() -> None:
    model = rs.load(build(Config(vocabulary=40, width=16, depth=2, heads=2, mechanism="hard")))
    trace = model.trace([5, 30, 6, 7])
    for analysis in (rs.reversed_attention, rs.attention_patching, lambda *args: rs.reversed_map(*args[:2], 0, 1)):
        with pytest.raises(rs.RheoscopeError, match=r"layer 0 are a discontinuous function .*; type rs.surgery"):
            analysis(model, trace, 7)


def test_invalid_targets_tokens_and_heads_are_refused() -> None:
    model = rs.load()
    trace = model.trace("The keys to the cabinet are")
    with pytest.raises(
        rs.RheoscopeError, match=r"the target must be one token, ' cabinet' is 3 .*; use another word .*; type target="
    ):
        rs.reversed_attention(model, trace, target=" cabinet")
    with pytest.raises(rs.RheoscopeError, match=r"token ids lie in 0 to 4095, got 9999; type target="):
        rs.reversed_attention(model, trace, target=9999)
    with pytest.raises(rs.RheoscopeError, match="there is no token 40"):
        rs.reversed_attention(model, trace, token=40)
    with pytest.raises(rs.RheoscopeError, match="head"):
        rs.reversed_map(model, trace, 1, 99)
    with pytest.raises(
        rs.RheoscopeError,
        match=r"a scalar tensor that depends on the logits, got a tensor of shape \(4, 4096\); type lambda logits",
    ):
        model.gradients("The keys", lambda logits: logits)
    assert inner_token_ids(model, " on") == model.ids(" on").tolist()[-1:]


def test_a_trace_of_other_weights_is_refused() -> None:
    model, trace = double("gpt2"), traced("llama", F64)
    for analysis in (rs.reversed_attention, rs.attention_patching, lambda *args: rs.reversed_map(*args, 0, 1)):
        with pytest.raises(
            rs.RheoscopeError, match=r"this trace comes from weights .*, but the model has weights .*; type model.trace"
        ):
            analysis(model, trace)
