"""A View: layers, heads and their operators, and what is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Head
from tests.cases import EVERY, WITH_M, distance, gap, model, network, ours, theirs, traced
from tests.models import test_encoder_decoder as linked
from tests.pretrained.cases import CONTEXT, VOCABULARY

F64 = torch.float64

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


def started(name: str, trace: Any) -> Tensor:
    """The sum that a model begins with: its first point, or in BERT what the norm of the embeddings reads."""
    if not name.startswith(("bert", "roberta")):
        return trace.points[0]
    net, read = network(name, F64), []
    norm = net.base_model.embeddings.LayerNorm
    handle = norm.register_forward_pre_hook(lambda module, args: read.append(args[0][0]))
    net(trace.ids[None])
    handle.remove()
    assert gap(norm(read[0]), trace.points[0]) <= 1e-12
    return read[0]


def positions(name: str, n: int) -> Tensor:
    """What stands beside the words at the start, by the network's own tables."""
    net = network(name, F64)
    if name in ours.CASES:
        added = ours.CASES[name].position in {"learned", "sinusoidal"}
        return net.stack.place.table[:n] if added else torch.zeros(n, 1)
    if name.startswith("gpt2"):
        return net.transformer.wpe.weight[:n]
    if name.startswith("opt"):
        return net.model.decoder.embed_positions.weight[2 : 2 + n]
    if name.startswith(("bert", "roberta")):
        tables, first = net.base_model.embeddings, 2 if name == "roberta" else 0
        return tables.position_embeddings.weight[first : first + n] + tables.token_type_embeddings.weight[0]
    return torch.zeros(n, 1)


@every
@torch.no_grad()
def test_embed_is_what_a_word_brings_to_the_stream(name: str) -> None:
    """Scaled and mapped into E, whoever made the model: with its position it is where the stream starts, for every token."""
    trace = traced(name, F64)
    words = trace.view.embedded(trace.ids)
    assert distance(words + positions(name, len(trace)), started(name, trace)) <= 1e-12


@pytest.mark.parametrize("name", list(linked.CASES))
@torch.no_grad()
def test_embed_is_what_a_word_brings_on_both_sides_of_a_pair(name: str) -> None:
    both, of = linked.traced(name, F64), linked.model(name, F64)
    for trace, stack in ((both.source, of.network.encoder), (both.target, of.network.decoder)):
        start = stack.place.embedded(trace.view.embedded(trace.ids)[None], slice(0, len(trace)))[0]
        assert distance(start, trace.points[0]) <= 1e-12


@pytest.mark.parametrize("name", ["gemma3", "own_encoder", "opt_projected"])
def test_what_enters_the_stream_is_scaled_or_mapped_and_no_table_is_copied(name: str) -> None:
    bare = network(name).stack.embed if name in ours.CASES else network(name).get_input_embeddings()
    view, ids = model(name).view, torch.arange(5)
    assert view.embed.shape != bare.weight.shape or gap(view.embedded(ids), bare.weight[ids]) > 1e-2
    assert view.embed.shape != bare.weight.shape or view.embed.data_ptr() == bare.weight.data_ptr()


@every
def test_facts_decide_no_number(name: str) -> None:
    """What a formula reads has a field of its own; facts are for those who ask where a number comes from."""
    view = model(name).view
    assert set(view.facts) - {"mechanism"} == {"model", "type", "family", "weights", "dtype", "device", "certificate"}
    assert view.context == (CONTEXT - 2 if name == "roberta" else CONTEXT)
    assert view.logit_cap == (3.0 if name == "gemma3_capped" else None)


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
