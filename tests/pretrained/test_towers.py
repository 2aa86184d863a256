"""Networks with several towers: each tower is a model, named by `source#tower`."""

import importlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import rheoscope as rs
from rheoscope.shapes import RheoscopeError
from tests.pretrained.cases import gap, randomised

TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "vocab_size": 50,
    "max_position_embeddings": 30,
}
VISION = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 32,
    "patch_size": 8,
}
ENDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}


def llava() -> Any:
    text, vision = hf.LlamaConfig(**TEXT, num_key_value_heads=2), hf.CLIPVisionConfig(**VISION)
    return hf.LlavaForConditionalGeneration(
        hf.LlavaConfig(text_config=text, vision_config=vision, image_token_index=49)
    )


NETWORKS: dict[str, Callable[[], Any]] = {
    "clip": lambda: hf.CLIPModel(hf.CLIPConfig(text_config={**TEXT, **ENDS}, vision_config=VISION)),
    "llava": llava,
    "siglip": lambda: hf.SiglipModel(hf.SiglipConfig(text_config={**TEXT, **ENDS}, vision_config=VISION)),
}


@cache
def network(name: str) -> Any:
    return randomised(NETWORKS[name]())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of every network, with an image processor."""
    folder = tmp_path_factory.mktemp("towers")
    processor = {"do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": 32}
    for name in NETWORKS:
        network(name).save_pretrained(folder / name)
        text = json.dumps({**processor, "image_processor_type": "ViTImageProcessor"})
        (folder / name / "preprocessor_config.json").write_text(text)
    return folder


@pytest.mark.parametrize("name", NETWORKS)
def test_the_vision_tower_has_a_cloud_of_patches(name: str, folder: Path) -> None:
    model, pixels = rs.load(f"{folder / name}#vision"), torch.randn(3, 32, 32)
    trace = model.trace(pixels)
    tower = network(name).model.vision_tower if name == "llava" else network(name).vision_model
    with torch.no_grad():
        expected = tower(pixels[None], output_hidden_states=True).hidden_states[-1][0]
    assert gap(trace.points[-1], expected) < 1e-5
    assert trace.tokens[-1] == "patch 3,3"
    assert model.view.facts["model"] == f"{folder / name}#vision"
    assert model.tokenizer is not None  # the image processor


@pytest.mark.parametrize("name", NETWORKS)
def test_the_text_tower_has_a_cloud_of_tokens(name: str, folder: Path) -> None:
    trace = rs.load(f"{folder / name}#text").trace([5, 6, 7, 8])
    tower = network(name).model.language_model if name == "llava" else network(name).text_model
    with torch.no_grad():
        last = tower(torch.tensor([[5, 6, 7, 8]]), output_hidden_states=True).last_hidden_state[0]
    final_norm = tower.norm if name == "llava" else tower.final_layer_norm
    assert gap(final_norm(trace.points[-1]), last) < 1e-5


def test_a_model_that_reads_text_alone_opens_without_a_choice(folder: Path) -> None:
    model = rs.load(folder / "llava")
    assert model.view.facts["weights"] == rs.load(f"{folder / 'llava'}#text").view.facts["weights"]
    assert model.trace([5, 6, 7], logits=True).logits.shape == (3, 50)


def test_the_directory_of_a_classifier_opens_its_only_tower(tmp_path: Path) -> None:
    config = hf.SiglipConfig(text_config={**TEXT, **ENDS}, vision_config=VISION)
    randomised(hf.SiglipForImageClassification(config)).save_pretrained(tmp_path)
    assert rs.load(tmp_path).trace(torch.randn(3, 32, 32)).tokens[0] == "patch 0,0"


def test_a_directory_may_have_the_mark_in_its_name(folder: Path) -> None:
    (folder / "a#b").symlink_to(folder / "llava")
    assert rs.load(folder / "a#b").view.layers == 2


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("clip", "several towers, each with a cloud of its own: text, vision; choose one"),
        ("siglip", "rs.load('{folder}/siglip#vision')"),
        ("clip#audio", "has no tower 'audio', expected one of: text, vision"),
        ("clip#", "has no tower ''"),
    ],
)
def test_a_missing_choice_lists_the_towers_in_one_line(source: str, words: str, folder: Path) -> None:
    with pytest.raises(RheoscopeError) as error:
        rs.load(f"{folder}/{source}")
    assert words.format(folder=folder) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_built_network_is_opened_by_its_tower() -> None:
    with pytest.raises(RheoscopeError, match=r"rs.load\(network.text_model\) or rs.load\(network.vision_model\)"):
        rs.load(network("clip"))
    assert rs.load(network("clip").vision_model).view.layers == 1


def test_a_network_without_towers_refuses_one(tmp_path: Path) -> None:
    randomised(hf.LlamaForCausalLM(hf.LlamaConfig(**TEXT, num_key_value_heads=2))).save_pretrained(tmp_path)
    with pytest.raises(RheoscopeError, match="LlamaForCausalLM has no towers, got 'vision'"):
        rs.load(f"{tmp_path}#vision")


PACKED = {
    "qwen2_vl": "Qwen2VisionTransformerPretrainedModel",
    "qwen2_5_vl": "Qwen2_5_VisionTransformerPretrainedModel",
    "qwen3_vl": "Qwen3VLVisionModel",
    "glm4v": "Glm4vVisionModel",
    "qwen2_5_omni": "Qwen2_5OmniVisionEncoder",
}
SMALL_TOWER = {
    "depth": 1,
    "embed_dim": 16,
    "hidden_size": 16,
    "num_heads": 2,
    "intermediate_size": 16,
    "out_hidden_size": 16,
}


@pytest.mark.parametrize("model_type", PACKED)
def test_packed_patches_are_refused_by_the_name_of_their_input(model_type: str) -> None:
    module = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    tower = getattr(module, PACKED[model_type])
    config = tower.config_class()
    for name, size in SMALL_TOWER.items():
        setattr(config, name, size)
    with pytest.raises(RheoscopeError) as error:
        rs.load(tower(config))
    assert f"{PACKED[model_type]} packs the patches of several images into one sequence (grid_thw" in str(error.value)
    assert "\n" not in str(error.value)
