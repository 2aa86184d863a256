"""Networks with several towers: each tower is a model, named by `source#tower`."""

import importlib
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

import rheoscope as rs
from rheoscope.attention.mask import BooleanMask
from rheoscope.pretrained.finder import describe_network
from rheoscope.pretrained.finder.segments import within_segments
from rheoscope.pretrained.packed_patches import pack_patches, unpack_patches
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
MULTIMODAL_ROPE = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [1, 1, 2]}
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
}
SMALL_TOWER = {
    "depth": 2,
    "embed_dim": 32,
    "hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 16,
    "out_hidden_size": 16,
    "patch_size": 2,
    "window_size": 12,
    "fullatt_block_indexes": [1],
    "deepstack_visual_indexes": [0],
}
"""Windows of three merged patches on a side. The image has eight, so the last windows have two."""


@cache
def packed_tower(model_type: str, name: str | None = None) -> Any:
    module = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    tower = getattr(module, name or PACKED[model_type])
    config = tower.config_class()
    for field, size in SMALL_TOWER.items():
        if hasattr(config, field):
            setattr(config, field, size)
    return randomised(tower(config))


@cache
def packed_model(model_type: str) -> Any:
    return rs.load(packed_tower(model_type))


@pytest.mark.parametrize("model_type", PACKED)
def test_packed_towers_have_a_cloud_for_one_image(model_type: str) -> None:
    model, pixels = packed_model(model_type), torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(0))
    trace, outputs = model.trace(pixels), list[torch.Tensor]()
    handle = model.network.blocks[-1].register_forward_hook(lambda module, args, out: outputs.append(out))
    with torch.no_grad():
        model.network(**pack_patches(model.network, pixels[None]))
    handle.remove()
    assert gap(trace.points[-1], outputs[0]) < 1e-5
    assert sorted(trace.tokens) == sorted(f"patch {row},{column}" for row in range(16) for column in range(16))
    assert trace.tokens[:5] == ["patch 0,0", "patch 0,1", "patch 1,0", "patch 1,1", "patch 0,2"]


def test_a_batch_of_packed_images_leaves_every_image_unchanged() -> None:
    model, images = packed_model("qwen2_5_vl"), list(torch.randn(2, 3, 32, 32))
    for trace, image in zip(model.trace(images), images, strict=True):
        assert gap(trace.points, model.trace(image).points) < 1e-5


def test_windows_of_patches_are_the_mask_of_their_layers() -> None:
    model = packed_model("qwen2_5_vl")
    trace = model.trace(torch.randn(3, 32, 32))
    windows = [tuple(int(x) // 6 for x in token.removeprefix("patch ").split(",")) for token in trace.tokens]
    is_same = torch.tensor([[query == key for key in windows] for query in windows])
    assert torch.equal(trace.weights(0, 0) > 0, is_same)
    assert bool((trace.weights(1, 0) > 0).all())


def all_pairs(mask: BooleanMask) -> torch.Tensor:
    return torch.ones_like(mask.allowed)


def shifted_by_a_patch(mask: BooleanMask) -> torch.Tensor:
    return mask.allowed.roll((1, 1), (0, 1))


def later_patches_hidden(mask: BooleanMask) -> torch.Tensor:
    return mask.allowed.tril()


@pytest.mark.parametrize("change", [all_pairs, shifted_by_a_patch, later_patches_hidden])
def test_wrong_windows_are_refused_by_the_certificate(
    change: Callable[[BooleanMask], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_wrong_windows(*arguments: Any) -> Any:
        mechanism = within_segments(*arguments)
        is_window = isinstance(mechanism.mask, BooleanMask)
        return replace(mechanism, mask=BooleanMask(change(mechanism.mask))) if is_window else mechanism

    monkeypatch.setattr(describe_network, "within_segments", with_wrong_windows)
    with pytest.raises(RheoscopeError, match="does not reproduce this model"):
        rs.load(packed_tower("qwen2_5_vl"))


@pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen2_5_vl"])
def test_an_edit_of_a_packed_tower_removes_the_displacement_of_its_head(model_type: str) -> None:
    model, pixels = packed_model(model_type), torch.randn(3, 32, 32)
    trace = model.trace(pixels)
    edited = model.trace(pixels, edit={(0, 1): lambda q, k, v, mechanism: torch.zeros_like(v)})
    assert gap(trace.points[1] - edited.points[1], trace.displacements(0)[1]) < 1e-5


def test_patches_are_packed_as_the_image_processor_packs_them() -> None:
    processor = Qwen2VLImageProcessorPil(patch_size=2, image_mean=[0.5] * 3, image_std=[0.25] * 3)
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 255, (24, 32, 3), dtype=np.uint8))
    expected = processor(images=photo, do_resize=False, return_tensors="pt")
    network = packed_tower("qwen2_vl")
    pixels = unpack_patches(network, expected)
    assert gap(pixels, (torch.tensor(np.array(photo)).movedim(-1, 0) / 255 - 0.5) / 0.25) < 1e-6
    packed = pack_patches(network, pixels[None])
    assert torch.equal(packed["hidden_states"], expected["pixel_values"])
    assert torch.equal(packed["grid_thw"], expected["image_grid_thw"])


def test_a_photo_of_any_size_becomes_the_image_of_a_packed_tower(tmp_path: Path) -> None:
    config = hf.Qwen2VLConfig(
        text_config={**TEXT, "num_key_value_heads": 2, "rope_parameters": MULTIMODAL_ROPE}, vision_config=SMALL_TOWER
    )
    network = randomised(hf.Qwen2VLForConditionalGeneration(config))
    network.save_pretrained(tmp_path)
    Qwen2VLImageProcessorPil(patch_size=2).save_pretrained(tmp_path)
    Image.new("RGB", (50, 20), (200, 100, 0)).save(tmp_path / "photo.png")
    model = rs.load(f"{tmp_path}#vision")
    trace = model.trace(tmp_path / "photo.png")
    assert len(trace) == 256
    assert trace.patches is not None
    assert trace.patches.photo[0, 0].tolist() == [200, 100, 0]
    processed = model.tokenizer(images=Image.new("RGB", (32, 32)), do_resize=False, return_tensors="pt")
    assert len(model.trace(processed)) == 256
    with pytest.raises(RheoscopeError, match=r"for images of one size: expected \(3, 32, 32\), got \(3, 32, 64\)"):
        model.trace(torch.randn(3, 32, 64))


def test_an_unknown_order_of_patches_is_refused_in_one_line() -> None:
    with pytest.raises(RheoscopeError) as error:
        rs.load(packed_tower("ernie4_5_vl_moe", "Ernie4_5_VLMoeVisionTransformerPretrainedModel"))
    assert "does not show the order of its packed patches, expected rows of 3 × 1 × 2 × 2 numbers" in str(error.value)
    assert "\n" not in str(error.value)
