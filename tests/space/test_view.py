"""A View: layers, heads and their operators, and what is refused."""

import pytest
import torch

from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Head
from tests.cases import EVERY, WITH_M, gap, model, network, ours, theirs
from tests.pretrained.cases import VOCABULARY

every = pytest.mark.parametrize("name", EVERY)


@every
def test_a_view_says_how_large_the_model_is(name: str) -> None:
    view, config = model(name).view, network(name).config
    depth = config.depth if name in ours.CASES else config.num_hidden_layers
    assert (view.layers, view.heads, view.width) == (depth, 4, 32)
    assert view.embed.shape == (VOCABULARY, 32)
    assert len(view.mlps) == view.layers
    if name in theirs.BIDIRECTIONAL:
        assert view.unembed is None
    else:
        assert view.unembed.shape == (32, VOCABULARY)


@pytest.mark.parametrize("name", WITH_M)
def test_a_head_is_one_of_its_layer(name: str) -> None:
    view = model(name).view
    head = view.head(1, 3)
    assert isinstance(head, Head)
    assert (head.layer, head.head) == (1, 3)
    assert head.M.shape == head.F.shape == (32, 32)
    assert gap(head.M.dense(), view.blocks[1].M().dense()[3]) == 0
    assert gap(head.M(7).dense(), view.blocks[1].M()(7).dense()[3]) <= 1e-7
    assert gap(head.F.dense(), view.blocks[1].F().dense()[3]) == 0
    assert head.mechanism is view.blocks[1].mechanism


@every
def test_the_weights_are_the_models_own(name: str) -> None:
    """Views of the model's tensors, no copies: the parameters of the View cost nothing."""
    storages = {x.untyped_storage().data_ptr() for x in model(name).network.parameters()}
    for block in model(name).view.blocks:
        branch = name in ours.CASES and ours.CASES[name].branch != 1  # folded into W_O
        for W in (block.W_Q, block.W_K, block.W_V, *(() if branch else (block.W_O,))):
            assert W.untyped_storage().data_ptr() in storages


@every
def test_facts_say_what_the_model_is(name: str) -> None:
    facts = model(name).view.facts
    assert facts["type"] == ("rheoscope" if name in ours.CASES else network(name).config.model_type)
    assert facts["dtype"] == "float32"
    assert facts["device"] == "cpu"
    assert len(facts["weights"]) == 16
    assert str(facts["certificate"]).startswith("exact on 8 tokens in float32: weights off by ")


@pytest.mark.parametrize("layer", [-1, 2, 99])
def test_a_layer_that_is_not_there_is_refused(layer: int) -> None:
    view = model("gpt2").view
    for ask in (view.heads_of, lambda at: view.head(at, 0)):
        with pytest.raises(RheoscopeError, match=rf"there is no layer {layer}; this model has layers 0 to 1"):
            ask(layer)


@pytest.mark.parametrize("head", [-1, 4, 99])
def test_a_head_that_is_not_there_is_refused(head: int) -> None:
    with pytest.raises(RheoscopeError, match=rf"there is no head {head} in layer 1; it has heads 0 to 3"):
        model("gpt2").view.head(1, head)


def test_the_heads_in_a_layer_are_what_an_analysis_takes() -> None:
    view = model("gpt2").view
    assert view.heads_in(1) == [(1, 0), (1, 1), (1, 2), (1, 3)]
    with pytest.raises(RheoscopeError, match="there is no layer 7"):
        view.heads_in(7)


def test_a_view_is_a_frozen_value() -> None:
    with pytest.raises(AttributeError):
        model("gpt2").view.embed = torch.zeros(1, 1)
