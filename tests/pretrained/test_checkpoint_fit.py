"""Weights that the stream needs are refused by name where they are missing; all others are named and left out."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

import rheoscope as rs
from rheoscope.pretrained.checkpoint_fit import _needed_weights
from rheoscope.shapes import RheoscopeError
from tests.pretrained.cases import GROUPED, gap, model, network, randomised, saved, text, traced, with_tensors

Tensors = dict[str, Tensor]
POOLER = ("pooler.dense.bias", "pooler.dense.weight")


def without(*parts: str) -> Callable[[Tensors], None]:
    """Take every tensor away whose name has one of the parts."""

    def change(tensors: Tensors) -> None:
        gone = [name for name in tensors if any(part in name for part in parts)]
        assert gone
        for name in gone:
            del tensors[name]

    return change


def adding(**shapes: tuple[int, ...]) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: torch.ones(shape) for name, shape in shapes.items()})


def ignored(directory: Path) -> tuple[str, ...]:
    return rs.load(directory).view.facts["certificate"].ignored_weights


def refused(directory: Path, what: str) -> None:
    with pytest.raises(RheoscopeError, match=rf"do not fit its config \({what}.*\); get both again") as told:
        rs.load(directory)
    assert "\n" not in str(told.value)


def test_a_bert_without_a_pooler_opens_and_says_so(tmp_path: Path) -> None:
    of = rs.load(with_tensors(saved("bert_bare", tmp_path), without("pooler")))
    assert torch.equal(of.trace(text()).points, traced("bert_bare").points)
    assert of.view.facts["certificate"].ignored_weights == POOLER
    assert str(of.view.facts["certificate"]).endswith("; ignored weights outside the stream: " + ", ".join(POOLER))


def test_a_checkpoint_that_lacks_something_has_one_fingerprint_and_leaves_the_seed_alone(tmp_path: Path) -> None:
    with_tensors(saved("bert_bare", tmp_path), without("pooler"))
    before = torch.random.get_rng_state()
    one, other = (rs.load(tmp_path).view.facts["weights"] for _ in range(2))
    assert one == other != model("bert_bare").view.facts["weights"]
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_an_encoder_whose_head_is_missing_is_the_bare_encoder(name: str, tmp_path: Path) -> None:
    of = rs.load(with_tensors(saved(name, tmp_path), without("cls.", "lm_head.")))
    assert torch.equal(of.trace(text()).points, traced(name).points)
    assert all(part.startswith(("cls.", "lm_head.")) for part in of.view.facts["certificate"].ignored_weights)
    with pytest.raises(RheoscopeError, match="has no unembedding, so there are no logits"):
        of.run(text())


def test_a_bare_encoder_from_the_file_of_a_masked_language_model(tmp_path: Path) -> None:
    """Hugging Face takes the prefix away; the head and the pooler are named."""
    of = rs.load(saved("bert", tmp_path, architectures=["BertModel"]))
    assert torch.equal(of.trace(text()).points, traced("bert").points)
    found = of.view.facts["certificate"]
    assert set(POOLER) < set(found.ignored_weights)
    assert "cls.predictions.transform.dense.weight" in found.ignored_weights
    assert str(found).endswith(f" and {len(found.ignored_weights) - 3} more")


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_language_model_from_the_file_of_its_base(name: str, tmp_path: Path) -> None:
    """Without the prefix: a tied unembedding is there, another one is missing."""
    network(name).base_model.save_pretrained(tmp_path)
    saved(name, tmp_path / "whole").joinpath("config.json").replace(tmp_path / "config.json")
    if name == "gpt2":
        assert gap(rs.load(tmp_path).run(text()), traced(name).logits) == 0
        assert ignored(tmp_path) == ()
    else:
        refused(tmp_path, "missing: lm_head.weight")


def test_weights_that_nobody_asked_for_are_named(tmp_path: Path) -> None:
    """Old checkpoints carry buffers that the model makes by itself now; others a second head, or an adapter."""
    further = {"score.weight": (2, 32), "model.layers.0.self_attn.q_proj.lora_A.weight": (4, 32), "step": (1,)}
    tables = {"model.layers.0.self_attn.rotary_emb.inv_freq": (4,)}
    with_tensors(saved("llama", tmp_path), adding(**further, **tables))
    assert gap(rs.load(tmp_path).run(text()), traced("llama").logits) == 0
    assert set(further) <= set(ignored(tmp_path)) <= set(further | tables)
    with_tensors(saved("gpt2", tmp_path / "gpt2"), adding(**{"score.weight": (2, 32)}))
    assert ignored(tmp_path / "gpt2") == ("score.weight",)
    assert gap(rs.load(tmp_path / "gpt2").run(text()), traced("gpt2").logits) == 0


@pytest.mark.parametrize("tied", [True, False])
def test_a_missing_unembedding_is_refused_unless_it_is_tied(tied: bool, tmp_path: Path) -> None:
    net = randomised(hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED, tie_word_embeddings=tied)))
    net.save_pretrained(tmp_path)
    if tied:
        assert ignored(tmp_path) == ()
        assert torch.equal(rs.load(tmp_path).run(text()), rs.load(net).run(text()))
    else:
        refused(with_tensors(tmp_path, without("lm_head")), "missing: lm_head.weight")


def test_a_classifier_that_is_missing_or_of_another_size_is_no_part_of_the_stream(tmp_path: Path) -> None:
    saved("llama", tmp_path, architectures=["LlamaForSequenceClassification"])
    assert ignored(tmp_path) == ("lm_head.weight", "score.weight")
    with_tensors(tmp_path, adding(**{"score.weight": (5, 32), "score.bias": (5,)}))
    of = rs.load(tmp_path)
    assert of.view.facts["certificate"].ignored_weights == ("lm_head.weight", "score.bias", "score.weight")
    assert torch.equal(of.trace(text()).points, traced("llama").points)
    assert of.view.unembed is None


STREAM = {
    "gpt2": ["transformer.wpe.weight", "transformer.h.1.attn.c_attn.bias", "transformer.ln_f.weight"],
    "llama": ["model.embed_tokens.weight", "model.layers.1.self_attn.q_proj.weight", "model.norm.weight"],
    "bert": ["bert.embeddings.token_type_embeddings.weight", "bert.encoder.layer.1.output.LayerNorm.bias"],
    "gemma3": ["model.layers.2.self_attn.q_norm.weight", "model.layers.0.post_feedforward_layernorm.weight"],
    "opt_projected": ["model.decoder.project_out.weight", "model.decoder.embed_positions.weight"],
    "neox": ["gpt_neox.final_layer_norm.bias", "gpt_neox.layers.0.mlp.dense_h_to_4h.bias"],
}


@pytest.mark.parametrize(("name", "part"), [(name, part) for name, parts in STREAM.items() for part in parts])
def test_a_missing_part_of_the_stream_is_refused_by_name(name: str, part: str, tmp_path: Path) -> None:
    held = dict(network(name).named_parameters(remove_duplicate=False))
    assert part in held
    refused(with_tensors(saved(name, tmp_path), without(part)), f"missing: {part}")


@torch.no_grad()
def moves(net: Any, encoder: bool, name: str) -> bool:
    """Whether noise on a weight moves the last point, or the logits of a decoder."""

    def seen() -> Tensor:
        return net.base_model(input_ids=text()[None]).last_hidden_state if encoder else net(text()[None]).logits

    before, x = seen(), net.get_parameter(name)
    noise = 3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    x.add_(noise)
    try:
        return gap(before, seen()) > 1e-4
    finally:
        x.sub_(noise)


@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "qwen3", "neox", "opt_projected", "gemma3", "phi3", "bert", "bert_bare"]
)
def test_what_the_stream_needs_is_what_moves_it(name: str) -> None:
    """The slow twin. A bias of keys moves every score of a query alike, which softmax does not see: needed all the same."""
    net, encoder = copy.deepcopy(network(name)), name.startswith("bert")
    names = list(dict(net.named_parameters()))
    needed, moving = _needed_weights(net, encoder, names), {part for part in names if moves(net, encoder, part)}
    assert moving <= needed
    assert all(part.endswith(("k_proj.bias", "key.bias")) for part in needed - moving)
    assert {part for part in names if part.startswith(("pooler.", "cls."))} == set(names) - needed


def test_layers_beyond_the_config_are_refused(tmp_path: Path) -> None:
    refused(
        with_tensors(saved("llama", tmp_path), adding(**{"model.layers.5.mlp.up_proj.weight": (24, 32)})),
        "of a further layer: model.layers.5.mlp.up_proj.weight",
    )


def test_a_bias_that_the_config_denies_is_refused(tmp_path: Path) -> None:
    """Hugging Face would read the model without it, and say other logits."""
    refused(saved("llama", tmp_path, attention_bias=False), "without a place: model.layers.0.self_attn.k_proj.bias")
    refused(
        with_tensors(saved("gpt2_by_depth", tmp_path / "gpt2"), adding(**{"lm_head.bias": (40,)})),
        "without a place: lm_head.bias",
    )
