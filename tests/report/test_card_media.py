"""The card of a model of images or sounds: claims over files or features, without those about words."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import rheoscope as rs
from rheoscope.catalogue import all_claims
from rheoscope.report import card as card_module
from rheoscope.report.card_blocks import card_heading, claim_table, skipped_lines
from rheoscope.report.card_cache import measurement_key
from rheoscope.report.card_clouds import CardCloud, clouds_of, trace_batches
from rheoscope.report.card_measurements import measure_cloud
from rheoscope.report.card_media import batches_of_one_size, media_files, model_of_media
from rheoscope.report.card_rows import opening_rows
from rheoscope.report.input_media import ImageFile, SoundFile
from rheoscope.report.text_pairs import text_pairs
from rheoscope.shapes import RheoscopeError
from rheoscope.space.claim import ClaimSample
from tests.covers.cases import random_model
from tests.pretrained import test_feature_pair
from tests.pretrained.cases import randomised
from tests.pretrained.test_feature_model import NETWORKS, pixels

ABOUT_WORDS = {"relation", "next_token", "senses", "relatedness", "asymmetry"}
IMAGES = [pixels(seed).float() for seed in range(5)]


@cache
def vit() -> Any:
    return rs.load(randomised(NETWORKS["vit"]()))


@cache
def wav2vec2() -> Any:
    import transformers as hf

    return rs.load(randomised(hf.Wav2Vec2Model(test_feature_pair.WAV2VEC2)))


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def few_claims(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    chosen = tuple(claim for claim in all_claims() if claim.name in names)
    monkeypatch.setattr(card_module, "all_claims", lambda: chosen)


def test_every_claim_without_words_is_measured_on_images() -> None:
    cloud = CardCloud(vit(), IMAGES)
    values, errors = measure_cloud(cloud, cloud.traces(), all_claims(), 2, 0, None, None)
    assert set(errors) == {claim.name for claim in all_claims() if claim.needs_words} == ABOUT_WORDS
    assert set(values) == {claim.name for claim in all_claims()} - ABOUT_WORDS
    assert all(str(error) == "its model reads no words" for error in errors.values())


def test_images_of_a_batch_have_the_numbers_of_single_images() -> None:
    (claim,) = (claim for claim in all_claims() if claim.name == "erasure")
    batch = claim.measure(ClaimSample(vit(), trace_batches(vit(), IMAGES), 2))["erasure"]
    single = claim.measure(ClaimSample(vit(), tuple(vit().trace([image]) for image in IMAGES), 2))["erasure"]
    torch.testing.assert_close(batch.observed, single.observed, rtol=1e-4, atol=1e-5)


def test_the_card_of_images_skips_words_and_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    few_claims(monkeypatch, "symmetry", "erasure", "senses")
    card = rs.card(vit(), IMAGES)
    assert card.claim.values.tolist() == ["symmetry", "erasure"]
    assert str(card_heading(card)).endswith("2 claims over 5 images")
    (skipped,) = skipped_lines(card)
    assert str(skipped).endswith("not measured, its model reads no words")
    assert "texts would decide" not in " ".join(str(row[-1].text) for row in claim_table(card).rows)
    assert rs.story(vit(), vit().trace(IMAGES[0])).sel(line="movement").percentile.notnull()
    names = [Path(f"{number}.png") for number in range(5)]
    facts = opening_rows(card, names).rows[1].details[0].facts
    assert any(str(line).endswith(".png") for line in facts.values())
    assert rs.atlas([card]).estimate.notnull().sum() == 2


def test_a_stored_card_answers_without_images(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RheoscopeError, match="reads images, not texts"):
        rs.card(vit())
    card = rs.card(vit(), IMAGES)
    assert rs.card(vit()).answer.values.tolist() == card.answer.values.tolist()


def test_measurements_of_other_images_have_other_names() -> None:
    claim, others = all_claims()[0], [pixels(seed).float() for seed in range(5, 10)]
    keys = {measurement_key(claim, ClaimSample(vit(), trace_batches(vit(), x), 2), "1") for x in (IMAGES, others)}
    assert len(keys) == 2


def test_sounds_of_other_lengths_run_in_other_batches() -> None:
    def sound(n: int) -> Tensor:
        return torch.randn(n, generator=torch.Generator().manual_seed(n))

    sounds = [sound(4000), sound(4000), sound(6000), sound(4000)]
    assert batches_of_one_size(sounds, 16) == [range(2), range(2, 3), range(3, 4)]
    assert batches_of_one_size(sounds, 1) == [range(i, i + 1) for i in range(4)]
    cloud = CardCloud(wav2vec2(), sounds)
    values, _ = measure_cloud(
        cloud, cloud.traces(), [c for c in all_claims() if c.name == "directions"], 2, 0, None, None
    )
    assert values["directions"]["directions"].observed.isfinite().all()


def test_both_sides_of_a_pair_of_sounds_and_texts_have_their_claims() -> None:
    model = rs.load(randomised(test_feature_pair.NETWORKS["whisper"]()))
    with pytest.raises(RheoscopeError, match="needs a target for each source"):
        text_pairs(model, [torch.randn(10, 50)])
    pairs = [(torch.randn(1, 10, 50, generator=torch.Generator().manual_seed(n)), [1, 5, 6, 7, 8, n]) for n in range(4)]
    claims = [claim for claim in all_claims() if claim.name in ("erasure", "asymmetry")]
    source, target = (
        measure_cloud(cloud, cloud.traces(), cloud.claims(claims), 2, 0, None, None)
        for cloud in clouds_of(model, text_pairs(model, pairs))
    )
    assert (set(source[0]), set(source[1])) == ({"source.erasure"}, {"source.asymmetry"})
    assert set(target[0]) == {"target.erasure", "target.asymmetry"}


def test_files_of_a_directory_are_checked_before_a_model_is_loaded(tmp_path: Path) -> None:
    for number in range(4):
        Image.fromarray(np.full((8, 8, 3), 40 * number, dtype=np.uint8)).save(tmp_path / f"{number}.png")
    files = media_files(tmp_path, ImageFile)
    assert [file.path.name for file in files] == ["0.png", "1.png", "2.png", "3.png"]
    with pytest.raises(RheoscopeError, match="reads no images"):
        model_of_media(random_model(), files)
    with pytest.raises(RheoscopeError, match="not an uncompressed WAV file"):
        media_files(tmp_path, SoundFile)
    (tmp_path / "0.png").unlink()
    with pytest.raises(RheoscopeError, match="at least 4 files"):
        media_files(tmp_path, ImageFile)
    with pytest.raises(RheoscopeError, match="no directory"):
        media_files(tmp_path / "1.png", ImageFile)


def test_too_few_images_are_refused() -> None:
    with pytest.raises(RheoscopeError, match="at least 4 images, got 3"):
        rs.card(vit(), IMAGES[:3])
