"""Relation swap: a text swapped with itself stays, heads that weigh all alike have no relation to swap, and RSA is RSA."""

import copy

import pytest
import torch

import rheoscope as rs
from rheoscope.covers.relation_swap.analysis import profile_correlations, profile_products
from rheoscope.shapes import RheoscopeError
from rheoscope.space.pair_distances import distances
from tests.cases import double, network, text


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "neox", "own_alibi", "own_biased"])
def test_the_same_text_twice_changes_nothing(name: str) -> None:
    model = double(name)
    found = rs.relation_swap(model, model.trace(text()), other=text(), draws=0)
    assert float(found.kl.max()) < 1e-12
    assert float(found.kl_all_layers.max()) < 1e-12
    assert float(found.kl_other_text) < 1e-12


def test_another_text_does_and_random_heads_do() -> None:
    model = double("llama")
    found = rs.relation_swap(model, model.trace(text()), other=text(1), draws=2)
    assert float(found.kl.min()) > 1e-9
    assert float(found.kl_null.min()) > 1e-9
    assert rs.relation_swap(model, model.trace(text()), draws=0).attrs["other"] == "the same tokens in another order"


def test_weights_that_do_not_depend_on_the_text_have_no_relation_to_swap() -> None:
    even = copy.deepcopy(network("llama", torch.float64))
    for layer in even.model.layers:
        for parameter in layer.self_attn.q_proj.parameters():
            torch.nn.init.zeros_(parameter)
    model = rs.load(even)
    found = rs.relation_swap(model, model.trace(text()), other=text(1), draws=2)
    assert float(found.kl.sel(swap="weights").max()) < 1e-12
    assert float(found.kl.sel(swap="values").min()) > 1e-9
    assert float(found.kl_null.max()) < 1e-12  # every head has the same weights


@torch.no_grad()
def test_a_swap_of_weights_is_its_definition() -> None:
    """One layer by hand: the other text's maps times this text's values."""
    model = double("gpt2")
    own, other = model.trace(text()), model.trace(text(1))
    A = torch.stack([other.weights(1, head) for head in range(model.view.heads)])
    v = model.view.layer_heads[1].qkv(own.layer_input(1))[2]
    by_hand = model.run(text(), edit={1: lambda q, k, values, mechanism, out: A[None] @ v})[-1].log_softmax(-1)
    plain = model.run(text())[-1].log_softmax(-1)
    found = rs.relation_swap(model, own, other=text(1), draws=0).kl.sel(swap="weights", layer=1)
    assert float(found) == pytest.approx(float((plain.exp() * (plain - by_hand)).sum()))


def test_places_that_are_relations_give_one() -> None:
    A = torch.rand(2, 9, 9, generator=torch.Generator().manual_seed(0)).double()
    rows = torch.cat([A, A.mT], -1).transpose(0, 1).flatten(1)
    relations = distances(profile_products(A))
    assert torch.allclose(relations, torch.cdist(rows, rows), atol=1e-6)
    follow = torch.rand(2, 36, generator=torch.Generator().manual_seed(1)).double()
    found = profile_correlations(relations, 3 * relations, follow, 0)
    assert float(found["profile_rsa"]) == pytest.approx(1)
    assert float(found["profile_rsa_partial"]) == pytest.approx(1)
    assert abs(float(found["profile_rsa_null"])) < 0.1


def test_what_is_refused() -> None:
    model = double("llama")
    with pytest.raises(RheoscopeError, match="tokens, and weights fit equal ones"):
        rs.relation_swap(model, model.trace(text()), other=[3, 4])
    with pytest.raises(RheoscopeError, match="no other order"):
        rs.relation_swap(model, model.trace([3, 4]))
    with pytest.raises(RheoscopeError, match="predicts nothing"):
        rs.relation_swap(double("bert"), double("bert").trace(text()))
