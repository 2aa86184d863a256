"""Our own models as operators: what M and F are for every mechanism, and what makes two models different."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import rheoscope as rs
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer
from rheoscope.shapes import RheoscopeError
from tests.models.cases import CASES, DOT, EVERY, NO_FORM, WITH_M, changed, model, network, seen, tiny, traced
from tests.pretrained.cases import gap, randomised

F64 = torch.float64


def centred(s: Tensor) -> Tensor:
    """Without the terms of the query alone and of the key alone."""
    return s - s.mean(-1, keepdim=True) - s.mean(-2, keepdim=True) + s.mean((-2, -1), keepdim=True)


@pytest.mark.parametrize("name", [name for name in WITH_M if CASES[name].position != "rotary"])
@torch.no_grad()
def test_M_is_the_form_of_the_scores(name: str) -> None:
    """Up to terms of the query alone and of the key alone, which double centring removes (biases, −|k|² of a metric)."""
    trace, own = seen(name, F64)
    for at, layer in enumerate(own):
        block, x = trace.view.layer_heads[at], trace.layer_input(at)
        n = torch.arange(len(x))
        bias = block.mechanism.position.bias(n, n)
        hat = block.norm.normalise(x)
        own_form = centred(layer.scores if bias is None else layer.scores - bias)
        assert gap(centred(block.M().bilinear_form(hat, hat)), own_form) <= 1e-10 * max(
            1.0, float(own_form.abs().max())
        )


@torch.no_grad()
def test_M_of_a_turned_metric_is_the_form_at_every_offset() -> None:
    """s_ij + c|q_i|² + c|k_j|² = x̂_i M(i − j) x̂_jᵀ: rotations keep lengths."""
    trace, own = seen("own_metric", F64)
    c = 0.5 / 2.0**2
    for at, layer in enumerate(own):
        block, x = trace.view.layer_heads[at], trace.layer_input(at)
        dot = layer.scores + c * layer.q.square().sum(-1)[:, :, None] + c * layer.k.square().sum(-1)[:, None]
        for offset in range(1 - len(x), len(x)):
            form = block.M()(offset).bilinear_form(block.norm.normalise(x), block.norm.normalise(x))
            assert gap(form.diagonal(-offset, -2, -1), dot.diagonal(-offset, -2, -1)) <= 1e-5


@pytest.mark.parametrize("name", sorted(NO_FORM))
def test_a_score_that_is_no_form_has_no_M(name: str) -> None:
    view = model(name).view
    for ask in (view.layer_heads[1].M, lambda: view.head(1, 2).M, lambda: rs.operators(view)):
        with pytest.raises(
            RheoscopeError, match=r"the score of this head \(.*\) is not a bilinear form .*; type trace"
        ) as said:
            ask()
        assert "\n" not in str(said.value)
    assert view.head(1, 2).F.shape == (32, 32)
    assert traced(name).scores(1, 2).shape == traced(name).weights(1, 2).shape == (18, 18)


@pytest.mark.parametrize("name", EVERY)
def test_parts_of_scores_are_for_scaled_dot_products(name: str) -> None:
    if name in DOT:
        assert bool(rs.scores(traced(name)).centred.notnull().all())
        return
    with pytest.raises(RheoscopeError, match=r"not scaled dot products, .*; type trace.scores\(layer, head\)"):
        rs.scores(traced(name))


@torch.no_grad()
def test_values_of_another_width_are_the_rank_of_F() -> None:
    """d_v = 5 of d = 32: F = W_V W_O has rank 5, and what heads move is Σ_j α_ij x̂_j F and constants."""
    trace = seen("own_values", F64)[0]
    for layer, block in enumerate(trace.view.layer_heads):
        assert block.W_V.shape == (2, 32, 5)
        assert block.W_O.shape == (4, 5, 32)
        assert torch.linalg.matrix_rank(block.F().dense()).tolist() == [5] * 4
        hat = block.norm.normalise(trace.layer_input(layer))
        for head in range(4):
            constant = block.value_bias[head] @ block.W_O[head]  # type: ignore[index]
            moved = trace.weights(layer, head).to(F64) @ hat @ block.F()[head].dense() + constant
            assert gap(trace.displacement(layer, head), moved) <= 1e-10


def test_a_mapped_value_has_no_F() -> None:
    from rheoscope.attention.feature_maps import UnitNorm

    block = model("own").view.layer_heads[0]
    mapped = replace(block, mechanism=replace(block.mechanism, value=UnitNorm()))
    with pytest.raises(RheoscopeError, match=r"maps its values by UnitNorm .* so it has no F; type trace.displacement"):
        mapped.F()


@pytest.mark.parametrize("name", WITH_M)
def test_operators_are_finite(name: str) -> None:
    found = rs.operators(model(name).view)
    assert all(bool(found[field].notnull().all()) for field in found.data_vars)


def test_offsets_may_reach_beyond_the_longest_text() -> None:
    """`rs.operators` asks for offsets up to 16; a rotation beyond the tables follows their formula."""
    short, long = (rs.load(randomised(Transformer(tiny(context=context, depth=1)).to(F64))) for context in (4, 64))
    for offset in (3, 4, 20):
        found, wanted = (
            one.view.layer_heads[0].mechanism.position.rotation_matrix(offset, 8, torch.empty(0, dtype=F64))
            for one in (short, long)
        )
        assert torch.equal(found, wanted)
    assert bool(rs.operators(short.view).symmetry_at_offset.notnull().all())


def test_tied_queries_and_keys_are_symmetric() -> None:
    def tie(net: Any) -> None:
        for block in net.stack.blocks:
            rows = block.attention.read.weight.unflatten(0, (-1, 8))
            rows[:4] = rows[4:6].repeat_interleave(2, 0)

    for block in changed("own", tie).view.layer_heads:
        for offset in (0, 1, 7, -3):
            assert gap(block.M().symmetry_at(offset), torch.ones(4)) <= 1e-6
        assert float(replace(block, W_K=block.W_K.flip(0)).M().symmetry().detach().abs().max()) < 0.6


@pytest.mark.parametrize("name", ["own", "own_alibi", "own_encoder"])
def test_positions_keep_their_precision(name: str) -> None:
    half = rs.load(copy.deepcopy(network(name)), dtype="bfloat16").network
    assert all(x.dtype is torch.bfloat16 for x in half.parameters())
    buffers = dict(half.named_buffers())
    assert buffers
    for key, x in buffers.items():
        assert torch.equal(x, network(name).get_buffer(key))


def test_another_mechanism_is_another_model() -> None:
    """The same weights read by another score: a Trace of one is not opened with the View of the other."""
    net = network("own_laplace")
    other = Transformer(net.config.with_changes(mechanism="scaled_dot")).eval()
    other.load_state_dict(net.state_dict())
    assert rs.load(other).view.facts["weights"] != model("own_laplace").view.facts["weights"]


def test_the_config_of_a_case_is_what_it_says() -> None:
    assert all(isinstance(config, Config) for config in CASES.values())
    assert {CASES[name].position for name in EVERY} == {"rotary", "learned", "sinusoidal", "alibi", "buckets", "none"}
