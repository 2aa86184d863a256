"""Sounds on the command line: the story of frames, of both clouds of a pair, and one line for what does not fit."""

import json
from pathlib import Path

import pytest
import torch
import transformers as hf

from rheoscope.catalogue import all_claims
from rheoscope.report import card as card_module
from tests.commands.cases import run_rheoscope
from tests.pretrained.cases import randomised, saved, tokenizer
from tests.pretrained.test_feature_pair import MOONSHINE, WAV2VEC2, write_sound

TARGET = ("--target", "w8 w9 w5 w6 w7 w9 w11")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model of frames `wav2vec2`, an encoder-decoder of sounds `moonshine`, a decoder `gpt2`, and sounds."""
    folder = tmp_path_factory.mktemp("sounds")
    with torch.no_grad():
        randomised(hf.Wav2Vec2Model(WAV2VEC2)).save_pretrained(folder / "wav2vec2")
        randomised(hf.MoonshineForConditionalGeneration(MOONSHINE)).save_pretrained(folder / "moonshine")
    saved("gpt2", folder / "gpt2")
    tokenizer().save_pretrained(folder / "gpt2")
    extractor = hf.Wav2Vec2FeatureExtractor(sampling_rate=16_000)
    extractor.save_pretrained(folder / "wav2vec2")
    hf.Wav2Vec2Processor(extractor, tokenizer()).save_pretrained(folder / "moonshine")
    write_sound(folder / "sound.wav")
    write_sound(folder / "slow.wav", rate=8000)
    (folder / "sounds").mkdir()
    for number in range(4):
        write_sound(folder / "sounds" / f"{number}.wav")
    (folder / "notes.txt").write_text("no sound")
    return folder


def test_the_story_of_a_sound_is_that_of_its_frames(place: Path) -> None:
    outcome = run_rheoscope("--audio", "sound.wav", "--model", "wav2vec2", "--fast", "--no-html", cwd=place)
    assert outcome.status == 0, outcome.err
    assert "What happens to this sound" in outcome.words
    assert "Movement" in outcome.words
    assert "analyse trajectory --model wav2vec2 --audio sound.wav" in outcome.words


def test_the_story_of_a_pair_reads_a_sound_and_a_target(place: Path) -> None:
    outcome = run_rheoscope("--audio", "sound.wav", "--model", "moonshine", *TARGET, "--no-html", "--fast", cwd=place)
    assert outcome.status == 0, outcome.err
    assert "source of 19 tokens: frame·0 frame·1" in outcome.words
    assert all(
        title in outcome.words for title in ("What happens to this text", "From source", "Source path", "Movement")
    )


@pytest.mark.parametrize("name", ["wav2vec2", "moonshine"])
def test_a_card_reads_the_sounds_of_a_directory(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For an encoder-decoder it is the card of the encoder."""
    few = tuple(claim for claim in all_claims() if claim.name in ("symmetry", "directions", "senses"))
    monkeypatch.setattr(card_module, "all_claims", lambda: few)
    outcome = run_rheoscope("card", name, "--audio", "sounds", "--no-cache", cwd=place)
    assert outcome.status == 0, outcome.err
    assert "2 claims over 4 sounds" in outcome.words
    assert "not measured, its model reads no words" in outcome.words


@pytest.mark.parametrize(("options", "label"), [((), "frame 5"), (TARGET, "w11")])
def test_an_analysis_runs_on_either_cloud(options: tuple[str, ...], label: str, place: Path) -> None:
    command = ("analyse", "trajectory", "--audio", "sound.wav", "--model", "moonshine", "--json", "t.json")
    outcome = run_rheoscope(*command, *options, cwd=place)
    assert outcome.status == 0, outcome.err
    assert label in json.dumps(json.loads((place / "t.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--audio", "notes.txt", "-m", "wav2vec2"], 1, "notes.txt is not an uncompressed WAV file"),
        (["--audio", "missing.wav", "-m", "wav2vec2"], 1, "there is no file missing.wav"),
        (["--audio", "slow.wav", "-m", "wav2vec2"], 1, "8000 samples per second of 16 bits, expected 16000"),
        (["--audio", "sound.wav"], 1, "the default model reads no sounds"),
        (["--audio", "sound.wav", "-m", "gpt2", "--target", "w5"], 1, "gpt2 reads no sounds"),
        (["--audio", "sound.wav", "-m", "wav2vec2", "--target", "w5"], 1, "wav2vec2 has no encoder"),
        (["--audio", "sound.wav", "-m", "moonshine", "--target", " "], 1, "the target is empty"),
        (["a text", "-m", "wav2vec2"], 1, "Wav2Vec2Model reads input_values, not a text"),
        (["a text", "--audio", "sound.wav"], 2, "--audio and TEXT exclude each other"),
        (["--audio", "sound.wav", "--image", "photo.png"], 2, "--image and --audio exclude each other"),
        (["--audio", "sound.wav", "--first", "3"], 2, "--audio and --first exclude each other"),
        (["analyse", "transport", "--audio", "notes.txt", "-m", "wav2vec2"], 1, "notes.txt is not an uncompressed"),
        (["analyse", "transport", "--audio", "sound.wav"], 1, "the default model reads no sounds"),
        (["analyse", "readout", "--audio", "sound.wav", "-m", "wav2vec2"], 1, "predicts no tokens"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(arguments: list[str], status: int, message: str, place: Path) -> None:
    outcome = run_rheoscope(*arguments, cwd=place)
    assert outcome.status == status
    assert message in outcome.err
    assert outcome.err.strip().count("\n") == 0
