"""A View: layers, heads and their operators, and errors."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rheoscope.models.config import TOKENS_AS_KEYS
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Head
from tests.cases import EVERY, WITH_M, distance, gap, model, network, ours, theirs, traced
from tests.models import test_encoder_decoder as linked
from tests.pretrained.cases import CONTEXT, VOCABULARY

F64 = torch.float64

every = pytest.mark.parametrize("name", EVERY)


@every
def test_view_has_the_sizes_of_the_model(name: str) -> None:
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
def test_head_equals_its_entry_in_the_layer(name: str) -> None:
    view = model(name).view
    head = view.head(1, 3)
    assert isinstance(head, Head)
    assert (head.layer, head.head) == (1, 3)
    assert head.M.shape == head.F.shape == (32, 32)
    assert gap(head.M.dense(), view.layer_heads[1].M().dense()[3]) == 0
    assert gap(head.M(7).dense(), view.layer_heads[1].M()(7).dense()[3]) <= 1e-7
    assert gap(head.F.dense(), view.layer_heads[1].F().dense()[3]) == 0
    assert head.mechanism is view.layer_heads[1].mechanism


@every
def test_weights_share_memory_with_the_model(name: str) -> None:
    """The View uses the model's tensors without copies."""
    storages = {x.untyped_storage().data_ptr() for x in model(name).network.parameters()}
    for block in model(name).view.layer_heads:
        config = ours.CASES.get(name)
        branch = config is not None and (config.branch != 1 or config.branch_gain != "none")  # folded into W_O
        has_tokens_as_keys = name in ours.CASES and ours.CASES[name].projection in TOKENS_AS_KEYS  # W_K = W_V = I
        key_maps = () if has_tokens_as_keys else (block.W_K, block.W_V)
        for W in (block.W_Q, *key_maps, *(() if branch else (block.W_O,))):
            assert W.untyped_storage().data_ptr() in storages


@every
def test_facts_describe_the_model(name: str) -> None:
    facts = model(name).view.facts
    assert facts["type"] == ("rheoscope" if name in ours.CASES else network(name).config.model_type)
    assert facts["dtype"] == "float32"
    assert facts["device"] == "cpu"
    assert len(facts["weights"]) == 16
    assert str(facts["certificate"]).startswith("exact on 8 tokens in float32: weights off by ")


def first_sum(name: str, trace: Any) -> Tensor:
    """The sum at the start of a model: its first point, or in BERT the input of the embedding norm."""
    if not name.startswith(("bert", "roberta")):
        return trace.points[0]
    net, norm_inputs = network(name, F64), []
    norm = net.base_model.embeddings.LayerNorm
    handle = norm.register_forward_pre_hook(lambda module, args: norm_inputs.append(args[0][0]))
    net(trace.ids[None])
    handle.remove()
    assert gap(norm(norm_inputs[0]), trace.points[0]) <= 1e-12
    return norm_inputs[0]


def positions(name: str, n: int) -> Tensor:
    """The position part of the first sum, from the network's own tables."""
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
def test_token_embeddings_plus_positions_start_the_stream(name: str) -> None:
    """The embedding, scaled and mapped into E, plus the position is the first point of every token."""
    trace = traced(name, F64)
    embeddings = trace.view.token_embeddings(trace.ids)
    assert distance(embeddings + positions(name, len(trace)), first_sum(name, trace)) <= 1e-12


@pytest.mark.parametrize("name", list(linked.CASES))
@torch.no_grad()
def test_token_embeddings_start_both_streams_of_a_pair(name: str) -> None:
    pair, pair_model = linked.traced(name, F64), linked.model(name, F64)
    for trace, stack in ((pair.source, pair_model.network.encoder), (pair.target, pair_model.network.decoder)):
        start = stack.place.add_to_embeddings(trace.view.token_embeddings(trace.ids)[None], slice(0, len(trace)))[0]
        assert distance(start, trace.points[0]) <= 1e-12


@pytest.mark.parametrize("name", ["gemma3", "own_encoder", "opt_projected"])
def test_embeddings_are_scaled_or_mapped_without_copying_the_table(name: str) -> None:
    embedding = network(name).stack.embed if name in ours.CASES else network(name).get_input_embeddings()
    view, ids = model(name).view, torch.arange(5)
    assert view.embed.shape != embedding.weight.shape or gap(view.token_embeddings(ids), embedding.weight[ids]) > 1e-2
    assert view.embed.shape != embedding.weight.shape or view.embed.data_ptr() == embedding.weight.data_ptr()


@every
def test_facts_affect_no_number(name: str) -> None:
    """Everything that a formula uses has its own field; facts describe the origin only."""
    view = model(name).view
    assert set(view.facts) - {"mechanism", "opened_from"} == {
        "model",
        "type",
        "family",
        "weights",
        "dtype",
        "device",
        "certificate",
    }
    assert view.context_length == (CONTEXT - 2 if name == "roberta" else CONTEXT)
    assert view.logit_cap == (3.0 if name == "gemma3_capped" else None)


@pytest.mark.parametrize("layer", [-1, 2, 99])
def test_missing_layer_raises(layer: int) -> None:
    view = model("gpt2").view
    for method in (view.heads_of, lambda index: view.head(index, 0)):
        with pytest.raises(RheoscopeError, match=rf"there is no layer {layer}; this model has layers 0 to 1"):
            method(layer)


@pytest.mark.parametrize("head", [-1, 4, 99])
def test_missing_head_raises(head: int) -> None:
    with pytest.raises(RheoscopeError, match=rf"there is no head {head} in layer 1; it has heads 0 to 3"):
        model("gpt2").view.head(1, head)


def test_head_indices_list_every_head_of_a_layer() -> None:
    view = model("gpt2").view
    assert view.head_indices(1) == [(1, 0), (1, 1), (1, 2), (1, 3)]
    with pytest.raises(RheoscopeError, match="there is no layer 7"):
        view.head_indices(7)


def test_view_is_immutable() -> None:
    with pytest.raises(AttributeError):
        model("gpt2").view.embed = torch.zeros(1, 1)
