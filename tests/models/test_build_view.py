"""Views of our own models: M and F of every mechanism, and what makes two models different."""

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
    """Scores without the terms that depend only on the query or only on the key."""
    return s - s.mean(-1, keepdim=True) - s.mean(-2, keepdim=True) + s.mean((-2, -1), keepdim=True)


@pytest.mark.parametrize("name", [name for name in WITH_M if CASES[name].position != "rotary"])
@torch.no_grad()
def test_M_gives_the_scores_up_to_terms_of_one_token(name: str) -> None:
    """Double centring removes terms of the query or the key alone, such as biases or −|k|² of a metric."""
    trace, recorded_layers = seen(name, F64)
    for layer_index, layer in enumerate(recorded_layers):
        block, x = trace.view.layer_heads[layer_index], trace.layer_input(layer_index)
        n = torch.arange(len(x))
        bias = block.mechanism.position.bias(n, n)
        hat = block.norm.normalise(x)
        own_form = centred(layer.scores if bias is None else layer.scores - bias)
        assert gap(centred(block.M().bilinear_form(hat, hat)), own_form) <= 1e-10 * max(
            1.0, float(own_form.abs().max())
        )


@torch.no_grad()
def test_M_of_a_rotary_metric_gives_the_scores_at_every_offset() -> None:
    """s_ij + c|q_i|² + c|k_j|² = x̂_i M(i − j) x̂_jᵀ, because rotations preserve lengths."""
    trace, recorded_layers = seen("own_metric", F64)
    c = 0.5 / 2.0**2
    for layer_index, layer in enumerate(recorded_layers):
        block, x = trace.view.layer_heads[layer_index], trace.layer_input(layer_index)
        dot = layer.scores + c * layer.q.square().sum(-1)[:, :, None] + c * layer.k.square().sum(-1)[:, None]
        for offset in range(1 - len(x), len(x)):
            form = block.M()(offset).bilinear_form(block.norm.normalise(x), block.norm.normalise(x))
            assert gap(form.diagonal(-offset, -2, -1), dot.diagonal(-offset, -2, -1)) <= 1e-5


@pytest.mark.parametrize("name", sorted(NO_FORM))
def test_a_score_that_is_not_a_bilinear_form_has_no_M(name: str) -> None:
    view = model(name).view
    for call in (view.layer_heads[1].M, lambda: view.head(1, 2).M, lambda: rs.operators(view)):
        with pytest.raises(
            RheoscopeError, match=r"the score of this head \(.*\) is not a bilinear form .*; type trace"
        ) as error:
            call()
        assert "\n" not in str(error.value)
    assert view.head(1, 2).F.shape == (32, 32)
    assert traced(name).scores(1, 2).shape == traced(name).weights(1, 2).shape == (18, 18)


@pytest.mark.parametrize("name", EVERY)
def test_scores_are_decomposed_only_for_scaled_dot_products(name: str) -> None:
    if name in DOT:
        assert bool(rs.scores(traced(name)).centred.notnull().all())
        return
    with pytest.raises(RheoscopeError, match=r"not scaled dot products, .*; type trace.scores\(layer, head\)"):
        rs.scores(traced(name))


@torch.no_grad()
def test_the_value_width_is_the_rank_of_F() -> None:
    """With d_v = 5 and d = 32, F = W_V W_O has rank 5, and heads add Σ_j α_ij x̂_j F plus constants."""
    trace = seen("own_values", F64)[0]
    for layer, block in enumerate(trace.view.layer_heads):
        assert block.W_V.shape == (2, 32, 5)
        assert block.W_O.shape == (4, 5, 32)
        assert torch.linalg.matrix_rank(block.F().dense()).tolist() == [5] * 4
        hat = block.norm.normalise(trace.layer_input(layer))
        for head in range(4):
            constant = block.value_bias[head] @ block.W_O[head]  # type: ignore[index]
            expected_displacement = trace.weights(layer, head).to(F64) @ hat @ block.F()[head].dense() + constant
            assert gap(trace.displacement(layer, head), expected_displacement) <= 1e-10


def test_a_mapped_value_has_no_F() -> None:
    from rheoscope.attention.feature_maps import UnitNorm

    block = model("own").view.layer_heads[0]
    mapped = replace(block, mechanism=replace(block.mechanism, value=UnitNorm()))
    with pytest.raises(RheoscopeError, match=r"maps its values by UnitNorm .* so it has no F; type trace.displacement"):
        mapped.F()


@pytest.mark.parametrize("name", WITH_M)
def test_operators_are_finite(name: str) -> None:
    result = rs.operators(model(name).view)
    assert all(bool(result[field].notnull().all()) for field in result.data_vars)


def test_rotations_beyond_the_context_follow_the_formula() -> None:
    """`rs.operators` uses offsets up to 16, which may exceed the precomputed tables."""
    short, long = (rs.load(randomised(Transformer(tiny(context=context, depth=1)).to(F64))) for context in (4, 64))
    for offset in (3, 4, 20):
        result, expected = (
            loaded.view.layer_heads[0].mechanism.position.rotation_matrix(offset, 8, torch.empty(0, dtype=F64))
            for loaded in (short, long)
        )
        assert torch.equal(result, expected)
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
def test_position_buffers_keep_their_dtype_in_half_precision(name: str) -> None:
    half_precision = rs.load(copy.deepcopy(network(name)), dtype="bfloat16").network
    assert all(x.dtype is torch.bfloat16 for x in half_precision.parameters())
    buffers = dict(half_precision.named_buffers())
    assert buffers
    for key, x in buffers.items():
        assert torch.equal(x, network(name).get_buffer(key))


def test_another_mechanism_changes_the_fingerprint() -> None:
    """With the same weights and another score, a Trace of one model cannot be opened with the View of the other."""
    net = network("own_laplace")
    other = Transformer(net.config.with_changes(mechanism="scaled_dot")).eval()
    other.load_state_dict(net.state_dict())
    assert rs.load(other).view.facts["weights"] != model("own_laplace").view.facts["weights"]


def test_the_cases_cover_every_position() -> None:
    assert all(isinstance(config, Config) for config in CASES.values())
    assert {CASES[name].position for name in EVERY} == {"rotary", "learned", "sinusoidal", "alibi", "buckets", "none"}
