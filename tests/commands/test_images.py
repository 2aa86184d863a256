"""Images on the command line: the story that a model of images can tell, and one line for what does not fit."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image

from rheoscope.catalogue import all_claims
from rheoscope.report import card as card_module
from tests.commands.cases import run_rheoscope
from tests.pretrained.cases import randomised
from tests.pretrained.test_towers import llava


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an image model `vit` and a photo of two halves."""
    folder = tmp_path_factory.mktemp("images")
    config = hf.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=24,
        image_size=32,
        patch_size=8,
    )
    with torch.no_grad():
        randomised(hf.ViTModel(config)).save_pretrained(folder / "vit")
        llava().save_pretrained(folder / "llava")
    processor = {"do_normalize": True, "do_resize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": 32}
    text = json.dumps({**processor, "image_processor_type": "ViTImageProcessor"})
    (folder / "vit" / "preprocessor_config.json").write_text(text)
    pixels = np.zeros((60, 60, 3), dtype=np.uint8)
    pixels[:, 30:] = 200
    Image.fromarray(pixels).save(folder / "photo.png")
    (folder / "notes.txt").write_text("no image")
    (folder / "photos").mkdir()
    for number in range(4):
        Image.fromarray(np.roll(pixels, 7 * number, axis=1)).save(folder / "photos" / f"{number}.png")
    return folder


def test_the_story_of_an_image_draws_patches_on_it(place: Path) -> None:
    outcome = run_rheoscope("--image", "photo.png", "--model", "vit", "--fast", "--html", "page.html", cwd=place)
    assert outcome.status == 0, outcome.err
    assert "What happens to this image" in outcome.words
    assert "Movement" in outcome.words
    assert "analyse trajectory --model vit --image photo.png" in outcome.words
    assert "rheoscope card vit --images DIR answers claims over many images" in outcome.words
    page = (place / "page.html").read_text(encoding="utf-8")
    assert page.count('href="data:image/jpeg;base64,') == 2
    assert "How far each patch moves" in page
    assert "Groups of patches" in page


def test_an_analysis_reads_an_image(place: Path) -> None:
    outcome = run_rheoscope(
        "analyse", "trajectory", "--image", "photo.png", "--model", "vit", "--json", "t.json", cwd=place
    )
    assert outcome.status == 0, outcome.err
    assert "patch 3,3" in (place / "t.json").read_text(encoding="utf-8")


def test_a_card_reads_the_images_of_a_directory(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = tuple(claim for claim in all_claims() if claim.name in ("symmetry", "erasure", "senses"))
    monkeypatch.setattr(card_module, "all_claims", lambda: few)
    command = ("card", "vit", "--images", "photos", "--no-cache", "--html", "card.html", "--json", "card.json")
    outcome = run_rheoscope(*command, cwd=place)
    assert outcome.status == 0, outcome.err
    assert "2 claims over 4 images" in outcome.words
    assert "not measured, its model reads no words" in outcome.words
    assert ".png" in (place / "card.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--image", "notes.txt", "-m", "vit"], 1, "notes.txt is not an image that Pillow can open"),
        (["--image", "missing.png", "-m", "vit"], 1, "there is no file missing.png"),
        (["--image", "photo.png"], 1, "the default model reads no images"),
        (
            ["--image", "photo.png", "-m", "llava"],
            1,
            "choose its vision tower; type --image photo.png --model 'llava#vision'",
        ),
        (["a text", "-m", "vit"], 1, "ViTModel reads pixel_values, not a text"),
        (["a text", "--image", "photo.png"], 2, "--image and TEXT exclude each other"),
        (["--image", "photo.png", "--file", "notes.txt"], 2, "--image and --file exclude each other"),
        (["analyse", "transport", "--image", "notes.txt", "-m", "vit"], 1, "notes.txt is not an image"),
        (["analyse", "transport", "--image", "photo.png"], 1, "the default model reads no images"),
        (["analyse", "readout", "--image", "photo.png", "-m", "vit"], 1, "predicts no tokens"),
        (["card", "vit"], 1, "reads images, not texts, so its card needs some; type --images DIR"),
        (["card", "--images", "photos"], 1, "the default model reads no images"),
        (["card", "vit", "--images", "missing"], 1, "missing is no directory of files"),
        (["card", "vit", "--images", "photos", "--texts", "notes.txt"], 2, "--images and --texts exclude each other"),
        (["card", "vit", "--images", "photos", "--audio", "photos"], 2, "--images and --audio exclude each other"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(arguments: list[str], status: int, message: str, place: Path) -> None:
    outcome = run_rheoscope(*arguments, cwd=place)
    assert outcome.status == status
    assert message in outcome.err
    assert outcome.err.strip().count("\n") == 0
