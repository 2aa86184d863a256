"""Networks that no operator describes are refused in one line that names the reason. Their neighbours open."""

from typing import Any

import pytest
import torch
import transformers as hf
from transformers.models.blip.modeling_blip_text import BlipTextLMHeadModel, BlipTextModel

import rheoscope as rs
from rheoscope.shapes import RheoscopeError

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


def vit_mae() -> Any:
    return hf.ViTMAEModel(hf.ViTMAEConfig(**SIZES, image_size=32, patch_size=8))


def blip_text(network_class: Any) -> Any:
    config = hf.BlipTextConfig(**SIZES, vocab_size=50, max_position_embeddings=30, encoder_hidden_size=32)
    config.is_decoder = True
    return network_class(config)


def aimv2(**sizes: int) -> Any:
    return hf.Aimv2VisionModel(hf.Aimv2VisionConfig(**SIZES | sizes, patch_size=8))


REFUSED: dict[str, tuple[Any, str]] = {
    "ViT-MAE": (vit_mae, "ViTMAEModel hides random patches (noise, mask_ratio), so two runs on the same image differ"),
    "BLIP's text decoder": (
        lambda: blip_text(BlipTextLMHeadModel),
        "BlipTextLMHeadModel runs BlipTextModel with is_decoder=True, but BlipTextModel alone has is_decoder=False",
    ),
    "16 patches and heads of 16 columns": (
        lambda: aimv2(image_size=32, hidden_size=64),
        "Aimv2VisionModel reads inputs of 16 tokens alone, and weights have 16 rows or columns too",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_network_is_refused_in_one_line(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(RheoscopeError) as error:
        rs.load(make())
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@torch.no_grad()
def test_the_base_of_a_text_decoder_opens_with_its_own_mask() -> None:
    network = blip_text(BlipTextLMHeadModel)
    model = rs.load(network.base_model)
    assert isinstance(model.network, BlipTextModel)
    assert model.trace(torch.arange(5)).weights(0, 0)[0, -1] > 0


@torch.no_grad()
def test_an_image_model_whose_number_of_patches_is_no_other_size_opens() -> None:
    network = aimv2(image_size=40).eval()
    image = torch.randn(1, 3, 40, 40)
    model = rs.load(network)
    assert torch.allclose(
        network.rms_norm(model.trace(image).points[-1]), network(pixel_values=image).last_hidden_state[0], atol=1e-5
    )
