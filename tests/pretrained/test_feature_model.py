"""Models that read images: their patches are the tokens of the cloud, found and proved as in models of text."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor

import rheoscope as rs
from rheoscope.shapes import RheoscopeError
from rheoscope.space.trace import Trace
from tests.pretrained.cases import gap, randomised

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
NARROW = {**SIZES, "intermediate_size": 24}
NETWORKS: dict[str, Callable[[], Any]] = {
    "beit": lambda: hf.BeitModel(hf.BeitConfig(**NARROW)),
    "clip": lambda: hf.CLIPVisionModel(hf.CLIPVisionConfig(**NARROW)),
    "deit": lambda: hf.DeiTModel(hf.DeiTConfig(**NARROW)),
    "dinov2": lambda: hf.Dinov2Model(hf.Dinov2Config(**SIZES)),
    "dinov2_with_registers": lambda: hf.Dinov2WithRegistersModel(hf.Dinov2WithRegistersConfig(**SIZES)),
    "dinov3": lambda: hf.DINOv3ViTModel(hf.DINOv3ViTConfig(**NARROW, num_register_tokens=4)),
    "internvl": lambda: hf.InternVLVisionModel(
        hf.InternVLVisionConfig(**NARROW | {"image_size": [32, 32], "patch_size": [8, 8]})
    ),
    "mlcd": lambda: hf.MLCDVisionModel(hf.MLCDVisionConfig(**NARROW)),
    "pixtral": lambda: hf.PixtralVisionModel(hf.PixtralVisionConfig(**NARROW | {"intermediate_size": 16})),
    "siglip": lambda: hf.SiglipVisionModel(hf.SiglipVisionConfig(**NARROW)),
    "vit": lambda: hf.ViTForImageClassification(hf.ViTConfig(**NARROW)),
}
SPECIAL = {"deit": 2, "dinov2_with_registers": 5, "dinov3": 5, "pixtral": 0, "siglip": 0}
"""The number of special tokens, where it is not 1."""


@cache
def network(name: str) -> Any:
    return randomised(NETWORKS[name]()).double()


@cache
def loaded(name: str) -> Any:
    return rs.load(network(name))


def pixels(seed: int = 0, size: tuple[int, int] = (32, 32)) -> Tensor:
    return torch.randn(3, *size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_weights_and_the_points_equal_the_network(name: str) -> None:
    trace = loaded(name).trace(pixels())
    network(name).set_attn_implementation("eager")
    with torch.no_grad():
        out = network(name)(pixel_values=pixels()[None], output_attentions=True, output_hidden_states=True)
    network(name).set_attn_implementation("sdpa")
    for layer in range(2):
        assert gap(trace.layer_input(layer), out.hidden_states[layer][0]) < 1e-5
        for head in range(4):
            assert gap(trace.weights(layer, head), out.attentions[layer][0, head]) < 1e-6


@pytest.mark.parametrize("name", NETWORKS)
def test_displacements_add_up(name: str) -> None:
    trace = loaded(name).trace(pixels())
    for layer in range(2):
        displacement = trace.points[trace.mid_steps[layer]] - trace.layer_input(layer)
        assert gap(trace.displacements(layer).sum(0) + trace.bias(layer), displacement) < 1e-6


@pytest.mark.parametrize("name", NETWORKS)
def test_every_patch_has_its_place(name: str) -> None:
    trace, n_special = loaded(name).trace(pixels()), SPECIAL.get(name, 1)
    assert trace.tokens[n_special:] == [f"patch {row},{column}" for row in range(4) for column in range(4)]
    assert trace.tokens[:n_special] == ["[CLS]", "[REG 1]", "[REG 2]", "[REG 3]", "[REG 4]"][:n_special]
    changed = pixels()
    changed[:, 16:24, 8:16] += 1.0
    changed_tokens = (loaded(name).trace(changed).points[0] != trace.points[0]).any(-1).nonzero()[:, 0].tolist()
    assert [trace.tokens[token] for token in changed_tokens] == ["patch 2,1"]
    assert trace.patches.places[changed_tokens].tolist() == [[2, 1]]


def test_a_batch_equals_its_images() -> None:
    traces = loaded("vit").trace([pixels(1), pixels(2)])
    assert len(traces) == 2
    assert gap(traces[1].points, loaded("vit").trace(pixels(2)).points) < 1e-12


def test_a_network_without_position_table_reads_other_sizes() -> None:
    trace = loaded("dinov2").trace(pixels(size=(24, 40)))
    assert trace.tokens[-1] == "patch 2,4"
    assert gap(trace.displacements(0).sum(0) + trace.bias(0), trace.points[1] - trace.points[0]) < 1e-6


def test_patches_rotate_by_their_places() -> None:
    """DINOv3: neighbours in a row have the same R anywhere, special tokens are not rotated, and other sizes are refused."""
    position = loaded("dinov3").view.layer_heads[0].mechanism.position
    axes = torch.eye(8, dtype=torch.float64)

    def rotation(token: int) -> Tensor:
        return position.encode(axes[None, None], torch.full((8,), token))[0, 0]

    assert torch.equal(rotation(0), axes)
    step = position.rotation_matrix(1, 8, axes)
    assert gap(step, axes) > 0.1
    for token in (5, 9, 18):
        assert gap(rotation(token + 1) @ rotation(token).mT, step) < 1e-6  # its angles are float32
    assert gap(position.rotation_matrix(-3, 8, axes), rotation(5) @ rotation(8).mT) < 1e-6
    with pytest.raises(RheoscopeError, match="images of one size"):
        loaded("dinov3").trace(pixels(size=(24, 40)))


def test_a_class_token_may_be_rotated_by_angles_of_its_own() -> None:
    """MLCD: the first patch is not rotated."""
    position = loaded("mlcd").view.layer_heads[0].mechanism.position
    x = torch.ones(1, 1, 2, 8, dtype=torch.float64)
    rotated = position.encode(x, torch.tensor([0, 1]))[0, 0]
    assert gap(rotated[1], x[0, 0, 1]) == 0
    assert gap(rotated[0], x[0, 0, 0]) > 0.1


def test_a_factor_of_every_coordinate_outside_of_modules_is_part_of_the_layer() -> None:
    """InternVL: LayerScale is a product in the block. An edit of a point passes it, and the feed-forward part includes it."""
    model, shift = loaded("internvl"), torch.linspace(-1, 1, 32, dtype=torch.float64)
    trace = model.trace(pixels())
    edited = model.trace(pixels(), hooks={"L0.resid_mid": lambda x: x + shift})
    assert gap(edited.points[1], trace.points[1] + shift) < 1e-6
    assert gap(trace.points[1] + trace.view.mlps[0](trace.points[1]), trace.points[2]) < 1e-6


def test_a_trace_is_traced_again_from_its_pixels(tmp_path: Path) -> None:
    model = loaded("vit")
    trace = model.trace(pixels())
    assert torch.equal(model.trace(trace).points, trace.points)
    opened = Trace.open(trace.save(tmp_path / "trace"), model.view)
    assert torch.equal(opened.features, trace.features)
    assert torch.equal(opened.patches.places, trace.patches.places)


@pytest.mark.parametrize(
    "analysis",
    ["trajectory", "transport", "clusters", "energy", "agreement", "distortion", "operators", "head_statistics"],
)
def test_analyses_of_clouds_and_of_heads_run(analysis: str) -> None:
    model = loaded("vit")
    function = getattr(rs, analysis)
    result = function(model.view) if analysis == "operators" else function(model.trace(pixels()))
    assert result.attrs["analysis"] == analysis


def test_score_attribution_takes_the_first_points_as_one_part() -> None:
    trace = loaded("vit").trace(pixels())
    result = rs.score_attribution(trace, layer=1, head=2, query=7, key=2)
    assert float(result.contribution.sum()) == pytest.approx(float(trace.scores(1, 2)[7, 2]), rel=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda model: model.trace("a cat"), "reads pixel_values, not a text"),
        (lambda model: model.trace([1, 2, 3]), "with 3 axes"),
        (lambda model: model.trace(pixels(), logits=True), "predicts no tokens"),
        (lambda model: model.run(pixels()), "predicts no tokens"),
        (lambda model: model.trace(pixels(size=(16, 32))), "cannot read pixel_values of shape"),
        (lambda model: model.trace(Path(__file__)), "is not an image that Pillow can open"),
        (lambda model: model.trace(Path("missing.png")), "there is no file missing.png"),
        (lambda model: rs.readout(model.trace(pixels())), "predicts no tokens"),
        (lambda model: rs.head_types(model), "reads no tokens"),
    ],
)
def test_what_an_image_model_cannot_do_is_refused_in_one_line(call: Any, words: str) -> None:
    with pytest.raises(RheoscopeError) as error:
        call(loaded("vit"))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved image model with its processor, and a photo."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("vit")
    randomised(hf.ViTModel(hf.ViTConfig(**NARROW))).save_pretrained(folder)
    processor = {"do_normalize": True, "do_resize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": 32}
    (folder / "preprocessor_config.json").write_text(
        json.dumps({**processor, "image_processor_type": "ViTImageProcessor"})
    )
    photo = np.random.default_rng(0).integers(0, 255, (50, 70, 3), dtype=np.uint8)
    Image.fromarray(photo).save(folder / "photo.png")
    return folder


def test_a_photo_becomes_the_pixels_of_the_processor(directory: Path) -> None:
    from PIL import Image

    model = rs.load(directory)
    trace = model.trace(directory / "photo.png")
    with Image.open(directory / "photo.png") as photo:
        expected = hf.AutoImageProcessor.from_pretrained(directory)(images=photo.convert("RGB"), return_tensors="pt")
        assert torch.equal(model.trace(photo).points, trace.points)
    assert torch.equal(trace.features, expected["pixel_values"][0])
    assert trace.text == "photo.png"


def test_a_report_of_a_photo_leaves_out_what_needs_a_vocabulary(directory: Path, tmp_path: Path) -> None:
    model = rs.load(directory)
    trace = model.trace(directory / "photo.png")
    assert rs.save_report(model, trace, tmp_path / "report.html").startswith("wrote")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "clusters of 17 tokens" in page
    assert "predicts no tokens" in page
