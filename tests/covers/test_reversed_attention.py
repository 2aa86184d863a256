"""Reversed attention: R is autograd's gradient of the scores in every family; rows sum to 0; targets are one token."""

import pytest
import torch

import rheoscope as rs
from rheoscope.attention.definition import masked_scores, query_key_positions
from rheoscope.covers.reversed_attention.analysis import inner_token_ids
from rheoscope.models.config import Config
from rheoscope.models.transformer import build
from tests.cases import double, ours, text, theirs, traced

F64 = torch.float64
EVERY = [*theirs.WITH_LOGITS, *ours.EVERY]


def by_autograd(model, ids, layer: int, head: int, target: int, position: int) -> torch.Tensor:
    """The gradient of −log p by the scores of one head, which an edit of the running model computes in the open."""
    z = torch.zeros(1, 1, len(ids), len(ids), dtype=F64, requires_grad=True)

    def opened(q, k, v, mechanism):
        i, j = query_key_positions(q.shape[-2], k.shape[-2])
        s = masked_scores(mechanism, mechanism.position.encode(q, i), mechanism.position.encode(k, j), i, j)
        return mechanism.normaliser(s + z) @ mechanism.value(v)

    logits = model.run(ids, edit={(layer, head): opened})
    return torch.autograd.grad(-logits[position].log_softmax(-1)[target], z)[0][0, 0]


@pytest.mark.parametrize("name", EVERY)
def test_R_is_the_gradient_of_the_scores(name: str) -> None:
    model, trace = double(name), traced(name, F64)
    for layer, head, position in ((0, 1, -1), (model.view.layers - 1, 0, 4)):
        R = rs.reversed_map(model, trace, layer, head, target=7, token=position)
        slow = by_autograd(model, text(), layer, head, 7, position)
        assert float((R - slow).norm()) <= 1e-5 * float(slow.norm()) + 1e-12


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "neox", "opt_post"])
def test_the_dataset_has_the_norms_and_columns_of_the_maps_and_rows_sum_to_0(name: str) -> None:
    model, trace = double(name), traced(name, F64)
    found = rs.reversed_attention(model, trace, target=3)
    logits = model.run(text()).detach()
    assert float(found.loss) == pytest.approx(float(-logits[-1].log_softmax(-1)[3]))
    for layer, head in ((0, 0), (1, 2)):
        R = rs.reversed_map(model, trace, layer, head, target=3)
        assert float(found.norm.sel(layer=layer, head=head)) == pytest.approx(float(R.norm()))
        assert found.gradient_abs_sum.sel(layer=layer, head=head).values == pytest.approx(R.abs().sum(0).numpy())
        assert found.gradient_sum.sel(layer=layer, head=head).values == pytest.approx(R.sum(0).numpy(), abs=1e-12)
        assert float(R.sum(-1).abs().max()) < 1e-12
        assert float(R.triu(1).abs().max()) == 0
    order = found["rank"].values.ravel()
    assert sorted(order) == list(range(1, found.norm.size + 1))
    assert found.norm.values.ravel()[order.argmin()] == found.norm.values.max()


def test_without_a_target_the_models_own_answer_is_meant_and_frozen_weights_will_do() -> None:
    model = rs.load()
    trace = model.trace("The keys to the cabinet are")
    own = int(model.run(trace.ids)[-1].argmax())
    plain, named = rs.reversed_attention(model, trace), rs.reversed_attention(model, trace, target=own)
    assert plain.attrs["target"] == own
    assert plain.norm.equals(named.norm)
    for parameter in model.network.parameters():
        parameter.requires_grad_(False)
    assert rs.reversed_attention(model, trace).norm.equals(plain.norm)
    with torch.no_grad():
        assert rs.reversed_attention(model, trace).norm.equals(plain.norm)


@pytest.mark.parametrize("head", range(4))
def test_a_planted_copying_head_tops_the_ranking(head: int) -> None:
    """The target stands in the text; of untrained heads one alone carries it to the last token."""
    torch.manual_seed(head)
    network = build(Config(vocabulary=40, width=32, depth=2, heads=4, tied=False))
    model, ids = rs.load(network), torch.tensor([5, 30, 6, 7, 8])
    block = model.view.layer_heads[1]
    with torch.no_grad():
        block.W_V[head].copy_(block.norm.apply(model.trace(ids).layer_input(1))[1, :, None] / 32 * torch.eye(1, 8))
        block.W_O[head].copy_(torch.eye(8, 1) * 3 * model.view.unembed[:, 30] / model.view.unembed[:, 30].norm())
    found = rs.reversed_attention(model, model.trace(ids), target=30)
    assert int(found["rank"].sel(layer=1, head=head)) == 1
    assert int(found.gradient_abs_sum.sel(layer=1, head=head).values.argmax()) == 1
    R = rs.reversed_map(model, model.trace(ids), 1, head, target=30)
    assert int(found.gradient_sum.sel(layer=1, head=head).values.argmin()) == 1
    assert float(R[-1, 1]) < 0  # a higher score of the target's token lowers the loss


def test_weights_that_jump_have_no_gradient() -> None:
    model = rs.load(build(Config(vocabulary=40, width=16, depth=2, heads=2, mechanism="hard")))
    trace = model.trace([5, 30, 6, 7])
    for asked in (rs.reversed_attention, rs.attention_patching, lambda *given: rs.reversed_map(*given[:2], 0, 1)):
        with pytest.raises(rs.RheoscopeError, match="the weights of layer 0 jump, so its scores have no gradient"):
            asked(model, trace, 7)


def test_targets_that_are_not_one_token_and_heads_that_are_not_there() -> None:
    model = rs.load()
    trace = model.trace("The keys to the cabinet are")
    with pytest.raises(rs.RheoscopeError, match=r"the target must be one token, ' cabinet' is 3 .*; type another word"):
        rs.reversed_attention(model, trace, target=" cabinet")
    with pytest.raises(rs.RheoscopeError, match=r"token ids lie in 0 to 4095, got 9999"):
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
    for asked in (rs.reversed_attention, rs.attention_patching, lambda *given: rs.reversed_map(*given, 0, 1)):
        with pytest.raises(
            rs.RheoscopeError, match=r"this trace comes from weights .*, but the model has weights .*; type model.trace"
        ):
            asked(model, trace)
