"""Tests of `relation_swap`: identical texts, uniform attention, one swap by hand, profiles and refused input."""

import copy

import pytest
import torch

import rheoscope as rs
from rheoscope.covers.relation_swap.analysis import profile_correlations, profile_products
from rheoscope.shapes import RheoscopeError
from rheoscope.space.pair_distances import distances
from tests.cases import double, network, text


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "neox", "own_alibi", "own_biased"])
def test_swapping_with_the_same_text_changes_nothing(name: str) -> None:
    model = double(name)
    result = rs.relation_swap(model, model.trace(text()), other=text(), draws=0)
    assert float(result.kl.max()) < 1e-12
    assert float(result.kl_all_layers.max()) < 1e-12
    assert float(result.kl_other_text) < 1e-12


def test_another_text_and_random_heads_change_the_prediction() -> None:
    model = double("llama")
    result = rs.relation_swap(model, model.trace(text()), other=text(1), draws=2)
    assert float(result.kl.min()) > 1e-9
    assert float(result.kl_null.min()) > 1e-9
    assert rs.relation_swap(model, model.trace(text()), draws=0).attrs["other"] == "the same tokens in another order"


def test_swapping_uniform_attention_weights_changes_nothing() -> None:
    uniform_network = copy.deepcopy(network("llama", torch.float64))
    for layer in uniform_network.model.layers:
        for parameter in layer.self_attn.q_proj.parameters():
            torch.nn.init.zeros_(parameter)
    model = rs.load(uniform_network)
    result = rs.relation_swap(model, model.trace(text()), other=text(1), draws=2)
    assert float(result.kl.sel(swap="weights").max()) < 1e-12
    assert float(result.kl.sel(swap="values").min()) > 1e-9
    assert float(result.kl_null.max()) < 1e-12  # all heads have the same weights


@torch.no_grad()
def test_a_swap_of_weights_multiplies_the_other_weights_and_the_own_values() -> None:
    model = double("gpt2")
    own, other = model.trace(text()), model.trace(text(1))
    A = torch.stack([other.weights(1, head) for head in range(model.view.heads)])
    v = model.view.layer_heads[1].qkv(own.layer_input(1))[2]
    swapped = model.run(text(), edit={1: lambda q, k, values, mechanism, out: A[None] @ v})[-1].log_softmax(-1)
    unchanged = model.run(text())[-1].log_softmax(-1)
    kl = rs.relation_swap(model, own, other=text(1), draws=0).kl.sel(swap="weights", layer=1)
    assert float(kl) == pytest.approx(float((unchanged.exp() * (unchanged - swapped)).sum()))


def test_points_proportional_to_profiles_have_correlation_1() -> None:
    A = torch.rand(2, 9, 9, generator=torch.Generator().manual_seed(0)).double()
    profiles = torch.cat([A, A.mT], -1).transpose(0, 1).flatten(1)
    profile_distances = distances(profile_products(A))
    assert torch.allclose(profile_distances, torch.cdist(profiles, profiles), atol=1e-6)
    covariates = torch.rand(2, 36, generator=torch.Generator().manual_seed(1)).double()
    result = profile_correlations(profile_distances, 3 * profile_distances, covariates, 0)
    assert float(result["profile_rsa"]) == pytest.approx(1)
    assert float(result["profile_rsa_partial"]) == pytest.approx(1)
    assert abs(float(result["profile_rsa_null"])) < 0.1


def test_texts_of_another_length_and_models_without_predictions_are_refused() -> None:
    model = double("llama")
    with pytest.raises(RheoscopeError, match=r"other must have as many tokens as the text \(18\), got 2"):
        rs.relation_swap(model, model.trace(text()), other=[3, 4])
    with pytest.raises(RheoscopeError, match="this text of 2 tokens has no other order; use a longer text"):
        rs.relation_swap(model, model.trace([3, 4]))
    with pytest.raises(RheoscopeError, match=r"has no unembedding, expected a language model; type rs.load"):
        rs.relation_swap(double("bert"), double("bert").trace(text()))
