"""Weights that the stream needs are required by name. All others are listed and ignored."""

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
    """Remove every tensor whose name contains one of the parts."""

    def change(tensors: Tensors) -> None:
        removed = [name for name in tensors if any(part in name for part in parts)]
        assert removed
        for name in removed:
            del tensors[name]

    return change


def adding(**shapes: tuple[int, ...]) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: torch.ones(shape) for name, shape in shapes.items()})


def ignored(directory: Path) -> tuple[str, ...]:
    return rs.load(directory).view.facts["certificate"].ignored_weights


def refused(directory: Path, problem: str) -> None:
    with pytest.raises(RheoscopeError, match=rf"do not fit its config \({problem}.*\); download or save both") as error:
        rs.load(directory)
    assert "\n" not in str(error.value)


def test_a_bert_without_a_pooler_opens_and_lists_it(tmp_path: Path) -> None:
    loaded = rs.load(with_tensors(saved("bert_bare", tmp_path), without("pooler")))
    assert torch.equal(loaded.trace(text()).points, traced("bert_bare").points)
    assert loaded.view.facts["certificate"].ignored_weights == POOLER
    assert str(loaded.view.facts["certificate"]).endswith("; ignored weights outside the stream: " + ", ".join(POOLER))


def test_an_incomplete_checkpoint_has_one_fingerprint_and_draws_no_random_numbers(tmp_path: Path) -> None:
    with_tensors(saved("bert_bare", tmp_path), without("pooler"))
    before = torch.random.get_rng_state()
    first, second = (rs.load(tmp_path).view.facts["weights"] for _ in range(2))
    assert first == second != model("bert_bare").view.facts["weights"]
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_an_encoder_whose_head_is_missing_is_the_bare_encoder(name: str, tmp_path: Path) -> None:
    loaded = rs.load(with_tensors(saved(name, tmp_path), without("cls.", "lm_head.")))
    assert torch.equal(loaded.trace(text()).points, traced(name).points)
    assert all(part.startswith(("cls.", "lm_head.")) for part in loaded.view.facts["certificate"].ignored_weights)
    with pytest.raises(RheoscopeError, match="has no unembedding and therefore no logits"):
        loaded.run(text())


def test_a_bare_encoder_from_the_file_of_a_masked_language_model(tmp_path: Path) -> None:
    """Hugging Face removes the prefix. The head and the pooler are listed."""
    loaded = rs.load(saved("bert", tmp_path, architectures=["BertModel"]))
    assert torch.equal(loaded.trace(text()).points, traced("bert").points)
    certificate = loaded.view.facts["certificate"]
    assert set(POOLER) < set(certificate.ignored_weights)
    assert "cls.predictions.transform.dense.weight" in certificate.ignored_weights
    assert str(certificate).endswith(f" and {len(certificate.ignored_weights) - 3} more")


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_language_model_from_the_file_of_its_base(name: str, tmp_path: Path) -> None:
    """Without the prefix, a tied unembedding is present and an untied one is missing."""
    network(name).base_model.save_pretrained(tmp_path)
    saved(name, tmp_path / "whole").joinpath("config.json").replace(tmp_path / "config.json")
    if name == "gpt2":
        assert gap(rs.load(tmp_path).run(text()), traced(name).logits) == 0
        assert ignored(tmp_path) == ()
    else:
        refused(tmp_path, "missing: lm_head.weight")


def test_unused_weights_are_listed(tmp_path: Path) -> None:
    """Old checkpoints contain buffers that the model computes now, others a second head or an adapter."""
    extra = {"score.weight": (2, 32), "model.layers.0.self_attn.q_proj.lora_A.weight": (4, 32), "step": (1,)}
    tables = {"model.layers.0.self_attn.rotary_emb.inv_freq": (4,)}
    with_tensors(saved("llama", tmp_path), adding(**extra, **tables))
    assert gap(rs.load(tmp_path).run(text()), traced("llama").logits) == 0
    assert set(extra) <= set(ignored(tmp_path)) <= set(extra | tables)
    with_tensors(saved("gpt2", tmp_path / "gpt2"), adding(**{"score.weight": (2, 32)}))
    assert ignored(tmp_path / "gpt2") == ("score.weight",)
    assert gap(rs.load(tmp_path / "gpt2").run(text()), traced("gpt2").logits) == 0


@pytest.mark.parametrize("tied", [True, False])
def test_a_missing_unembedding_is_refused_unless_it_is_tied(tied: bool, tmp_path: Path) -> None:
    small_network = randomised(hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED, tie_word_embeddings=tied)))
    small_network.save_pretrained(tmp_path)
    if tied:
        assert ignored(tmp_path) == ()
        assert torch.equal(rs.load(tmp_path).run(text()), rs.load(small_network).run(text()))
    else:
        refused(with_tensors(tmp_path, without("lm_head")), "missing: lm_head.weight")


def test_a_missing_or_resized_classifier_is_ignored(tmp_path: Path) -> None:
    saved("llama", tmp_path, architectures=["LlamaForSequenceClassification"])
    assert ignored(tmp_path) == ("lm_head.weight", "score.weight")
    with_tensors(tmp_path, adding(**{"score.weight": (5, 32), "score.bias": (5,)}))
    loaded = rs.load(tmp_path)
    assert loaded.view.facts["certificate"].ignored_weights == ("lm_head.weight", "score.bias", "score.weight")
    assert torch.equal(loaded.trace(text()).points, traced("llama").points)
    assert loaded.view.unembed is None


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
    parameters = dict(network(name).named_parameters(remove_duplicate=False))
    assert part in parameters
    refused(with_tensors(saved(name, tmp_path), without(part)), f"missing: {part}")


@torch.no_grad()
def affecting_weights(small_network: Any, encoder: bool, names: list[str]) -> set[str]:
    """The weights on which noise changes the last point, or the logits of a decoder."""

    def output() -> Tensor:
        return (
            small_network.base_model(input_ids=text()[None]).last_hidden_state
            if encoder
            else small_network(text()[None]).logits
        )

    before, affecting = output(), set()
    for name in names:
        x = small_network.get_parameter(name)
        original = x.clone()
        x.add_(3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0)))
        if gap(before, output()) > 1e-4:
            affecting.add(name)
        x.copy_(original)
    return affecting


@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "qwen3", "neox", "opt_projected", "gemma3", "phi3", "bert", "bert_bare"]
)
def test_needed_weights_are_those_that_affect_the_output(name: str) -> None:
    """A bias of keys shifts all scores of a query equally, which softmax ignores, but it still counts as needed."""
    small_network, encoder = copy.deepcopy(network(name)), name.startswith("bert")
    names = list(dict(small_network.named_parameters()))
    needed, affecting = (
        _needed_weights(small_network, encoder, names),
        affecting_weights(small_network, encoder, names),
    )
    assert affecting <= needed
    assert all(part.endswith(("k_proj.bias", "key.bias")) for part in needed - affecting)
    assert {part for part in names if part.startswith(("pooler.", "cls."))} == set(names) - needed


def test_layers_beyond_the_config_are_refused(tmp_path: Path) -> None:
    refused(
        with_tensors(saved("llama", tmp_path), adding(**{"model.layers.5.mlp.up_proj.weight": (24, 32)})),
        "of a layer that the config lacks: model.layers.5.mlp.up_proj.weight",
    )


def test_a_bias_that_the_config_denies_is_refused(tmp_path: Path) -> None:
    """Hugging Face would load the model without it and return other logits."""
    refused(saved("llama", tmp_path, attention_bias=False), "without a place: model.layers.0.self_attn.k_proj.bias")
    refused(
        with_tensors(saved("gpt2_by_depth", tmp_path / "gpt2"), adding(**{"lm_head.bias": (40,)})),
        "without a place: lm_head.bias",
    )
