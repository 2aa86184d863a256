"""The digits task: patches encode pixels, held-out images are never trained on, and all of them are evaluated."""

from dataclasses import replace

import pytest
import torch

from rheoscope.models.digits import CLASS_TOKEN, MAX_BRIGHTNESS, N_PATCHES, DigitsTask, load_images, patch_ids
from rheoscope.models.recipes import Recipe, digits, tiny
from rheoscope.models.token_corpus import IGNORE_INDEX
from rheoscope.shapes import RheoscopeError

pytest.importorskip("sklearn")
TASK = DigitsTask()


def recipe() -> Recipe:
    return replace(digits(), config=digits().config.with_changes(vocabulary=TASK.vocabulary))


def test_a_patch_is_its_four_pixels() -> None:
    pixels, _ = load_images()
    tokens = patch_ids(pixels[:5])
    for image, row in zip(pixels[:5].tolist(), tokens.tolist(), strict=True):
        for patch, token in enumerate(row):
            down, right = 2 * (patch // 4), 2 * (patch % 4)
            patch_pixels = [
                image[down][right],
                image[down][right + 1],
                image[down + 1][right],
                image[down + 1][right + 1],
            ]
            shades = [round(3 * value / MAX_BRIGHTNESS) for value in patch_pixels]
            assert token == int("".join(map(str, shades)), 4)
            assert TASK.token_features()[token].tolist() == pytest.approx([2 * shade / 3 - 1 for shade in shades] + [1])


def test_the_class_token_has_the_digit_as_target() -> None:
    x, y = TASK.batch(0, recipe())
    assert x.shape == y.shape == (16, N_PATCHES + 1)
    assert (x[:, 0] == CLASS_TOKEN).all()
    assert (x[:, 1:] < CLASS_TOKEN).all()
    assert (y[:, 0] > CLASS_TOKEN).all()
    assert (y[:, 1:] == IGNORE_INDEX).all()
    assert TASK.n_targets((x, y)) == 16


def test_no_held_out_image_is_trained_on_and_all_are_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, digit = load_images()
    numbered_pixels = torch.arange(len(pixels)).float()[:, None, None].expand(-1, 8, 8)
    monkeypatch.setattr("rheoscope.models.digits.load_images", lambda: (numbered_pixels, digit))
    monkeypatch.setattr("rheoscope.models.digits.patch_ids", lambda pixels: pixels[:, 0, :1].long())
    trained = {int(value) for step in range(200) for value in TASK.batch(step, recipe())[0][:, 1]}
    evaluated = [int(value) for x, _ in TASK.held_out_batches(recipe()) for value in x[:, 1]]
    assert sorted(evaluated) == list(range(1438, 1797))
    assert max(trained) == 1437
    assert len(trained) > 1200


def test_a_batch_is_a_function_of_seed_and_step() -> None:
    first, repeated, later, other = (
        TASK.batch(step, recipe().with_changes(seed=seed))[0] for step, seed in ((3, 1), (3, 1), (4, 1), (3, 2))
    )
    assert torch.equal(first, repeated)
    assert not torch.equal(first, later)
    assert not torch.equal(first, other)


def test_recipes_with_another_form_or_context_are_refused() -> None:
    with pytest.raises(RheoscopeError, match="form=encoder"):
        TASK.check(tiny())
    with pytest.raises(RheoscopeError, match="an image has 17 tokens, got context=16"):
        TASK.check(digits().with_changes(context=16))
