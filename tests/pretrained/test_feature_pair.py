"""Encoder–decoders of sounds: frames and the tokens of a text are two linked clouds."""

import json
import wave
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
from tests.pretrained.cases import gap, randomised

IDS = {"vocab_size": 60, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
WHISPER = hf.WhisperConfig(
    **IDS,
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=48,
    decoder_ffn_dim=48,
    num_mel_bins=10,
    max_source_positions=25,
    max_target_positions=40,
)
MOONSHINE = hf.MoonshineConfig(
    **IDS,
    hidden_size=32,
    intermediate_size=48,
    encoder_num_hidden_layers=2,
    decoder_num_hidden_layers=2,
    encoder_num_attention_heads=4,
    decoder_num_attention_heads=4,
    encoder_num_key_value_heads=4,
    decoder_num_key_value_heads=4,
)
WAV2VEC2 = hf.Wav2Vec2Config(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    conv_dim=(16,) * 7,
    num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=4,
)
NETWORKS: dict[str, Callable[[], Any]] = {
    "moonshine": lambda: hf.MoonshineForConditionalGeneration(MOONSHINE),
    "whisper": lambda: hf.WhisperForConditionalGeneration(WHISPER),
}
TARGET = [1, 5, 6, 7, 8]
RATE = 16_000


@cache
def network(name: str) -> Any:
    return randomised(NETWORKS[name]()).double()


@cache
def loaded(name: str) -> Any:
    return rs.load(network(name))


def features(name: str, seed: int = 0) -> Tensor:
    size = (10, 50) if name == "whisper" else (9000,)
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", NETWORKS)
def test_both_clouds_and_their_link_equal_the_network(name: str) -> None:
    linked = loaded(name).trace((features(name), TARGET), logits=True)
    network(name).set_attn_implementation("eager")
    inputs = {"input_features" if name == "whisper" else "input_values": features(name)[None]}
    with torch.no_grad():
        out = network(name)(
            **inputs, decoder_input_ids=torch.tensor([TARGET]), output_attentions=True, output_hidden_states=True
        )
    network(name).set_attn_implementation("sdpa")
    assert gap(linked.target.logits, out.logits[0]) < 1e-5
    for layer in range(2):
        assert gap(linked.source.layer_input(layer), out.encoder_hidden_states[layer][0]) < 1e-5
        for head in range(4):
            assert gap(linked.source.weights(layer, head), out.encoder_attentions[layer][0, head]) < 1e-6
            assert gap(linked.target.weights(layer, head), out.decoder_attentions[layer][0, head]) < 1e-6
            assert gap(linked.target.cross_weights(layer, head), out.cross_attentions[layer][0, head]) < 1e-6


@pytest.mark.parametrize("name", NETWORKS)
def test_each_side_is_a_model_of_its_own(name: str) -> None:
    linked = loaded(name).trace((features(name), TARGET))
    encoder, decoder = rs.source_model(loaded(name)), rs.target_model(loaded(name), features(name))
    assert linked.source.tokens[:2] == ["frame 0", "frame 1"]
    assert torch.equal(encoder.trace(linked.source).points, linked.source.points)
    assert gap(decoder.trace(TARGET).points, linked.target.points) < 1e-12
    assert rs.transport(encoder.trace(features(name))).attrs["analysis"] == "transport"
    assert "L1.cross.H2" in rs.readout(decoder.trace(TARGET)).component.values


def test_a_batch_equals_its_pairs() -> None:
    pairs = [(features("whisper", 1), TARGET), (features("whisper", 2), TARGET[:3])]
    both = loaded("whisper").trace(pairs)
    alone = loaded("whisper").trace(pairs[1])
    assert gap(both[1].source.points, alone.source.points) < 1e-12
    assert gap(both[1].target.points, alone.target.points) < 1e-12


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (("a text", TARGET), "reads input_features, not a text"),
        ((torch.zeros(10, 40), TARGET), "cannot read input_features of shape (10, 40)"),
        ((torch.zeros(50), TARGET), "with 2 axes"),
        ((Path("missing.wav"), TARGET), "WhisperEncoder has no feature extractor"),
    ],
)
def test_a_source_that_is_no_sound_is_refused_in_one_line(pair: Any, words: str) -> None:
    with pytest.raises(RheoscopeError) as error:
        loaded("whisper").trace(pair)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_wav2vec2_opens_as_a_cloud_of_frames() -> None:
    trace = rs.load(randomised(hf.Wav2Vec2Model(WAV2VEC2)).double()).trace(torch.randn(8000).double())
    assert trace.tokens[0] == "frame 0"
    assert gap(trace.displacements(0).sum(0) + trace.bias(0), trace.points[1] - trace.points[0]) < 1e-6


# Sound files


def write_sound(path: Path, rate: int = RATE, n_bytes: int = 2) -> Path:
    samples = (np.sin(np.arange(8000) / 9) * 0.5 * 2 ** (8 * n_bytes - 1)).astype(
        f"<i{n_bytes}" if n_bytes > 1 else "u1"
    )
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(n_bytes)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
    return path


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved Moonshine with its feature extractor and a tokenizer of letters."""
    from tokenizers import Tokenizer, models

    folder = tmp_path_factory.mktemp("moonshine")
    network("moonshine").float().save_pretrained(folder)
    network("moonshine").double()
    extractor = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": RATE, "do_normalize": False}
    (folder / "preprocessor_config.json").write_text(json.dumps({**extractor, "processor_class": "Wav2Vec2Processor"}))
    letters = {chr(97 + i): i + 5 for i in range(26)} | {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="<unk>"))
    hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def saved(directory: Path) -> Any:
    return rs.load(directory)


def test_a_wav_file_becomes_the_features_of_the_extractor(saved: Any, directory: Path) -> None:
    linked = saved.trace((write_sound(directory / "sound.wav"), "a"))
    assert linked.source.text == "sound.wav"
    expected = torch.sin(torch.arange(8000) / 9) * 0.5
    assert gap(linked.source.features, expected) < 1e-3
    assert linked.target.ids.tolist() == [1, 5]
    wide = saved.trace((write_sound(directory / "wide.wav", n_bytes=4), "a"))
    assert gap(wide.source.features, linked.source.features) < 1e-3


@pytest.mark.parametrize(
    ("rate", "n_bytes", "words"),
    [
        (8000, 2, "has 8000 samples per second of 16 bits, expected 16000 samples per second of 16 or 32 bits"),
        (RATE, 1, "has 16000 samples per second of 8 bits"),
    ],
)
def test_other_sampling_rates_are_refused(rate: int, n_bytes: int, words: str, saved: Any, directory: Path) -> None:
    with pytest.raises(RheoscopeError) as error:
        rs.source_model(saved).trace(write_sound(directory / "other.wav", rate, n_bytes))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_sound_is_refused(saved: Any, directory: Path) -> None:
    with pytest.raises(RheoscopeError, match=r"config\.json is not an uncompressed WAV file"):
        rs.source_model(saved).trace(directory / "config.json")
