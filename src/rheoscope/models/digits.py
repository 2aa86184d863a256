"""Handwritten digits as a task: image patches are tokens, and one more token predicts the digit."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.models.config import set_fields
from rheoscope.models.recipes import Recipe
from rheoscope.models.task import Batch, TokenPrediction, check_form
from rheoscope.models.token_corpus import IGNORE_INDEX, seeded_generator
from rheoscope.shapes import RheoscopeError

N_SHADES, PIXELS_PER_PATCH, N_PATCHES, N_CLASSES = 4, 4, 16, 10
"""Shades per pixel, pixels per patch, patches per image, digits."""
CLASS_TOKEN = N_SHADES**PIXELS_PER_PATCH
"""The id of the class token. The ids of the digits follow it."""
MAX_BRIGHTNESS = 16
"""The largest stored value of a pixel."""
HELD_OUT_DIVISOR = 5
"""One image in this many, from the end, is held out."""


@dataclass(frozen=True)
class DigitsTask(TokenPrediction):
    """Which digit does an image show? 16 patches of 2 × 2 pixels are tokens, and a class token predicts the digit.

    **Formula** A pixel has one of 4 shades and a patch one of 4⁴ = 256 ids. Id 256 is the class token, and 257 … 266 are the
    digits. A row is the class token followed by the patches, line by line. The loss is taken at the class token only.
    `token_features` are the shades of the four pixels, so the embedding starts as a linear map of them.

    **Laws** A batch is a function of (seed, step). No held-out image is used for training. The tokens of an image do not depend
    on other images. The loss at chance is log 10.

    **Source** scikit-learn's digits, 1,797 images, of which the last fifth is held out. The task follows the digits of
    arXiv:2412.18288, whose abstract does not give the protocol, so its form is ours.

    **See also** `TwoMoonsTask`, the other small task of that paper.
    """

    @property
    def vocabulary(self) -> int:
        return CLASS_TOKEN + 1 + N_CLASSES

    @property
    def ignore_index(self) -> int:
        return IGNORE_INDEX

    def check(self, recipe: Recipe) -> None:
        check_form(recipe, "encoder", Message("images"))
        if recipe.context != N_PATCHES + 1:
            raise RheoscopeError(
                Message("an image has {n} tokens, got context={context}", n=N_PATCHES + 1, context=recipe.context),
                set_fields(context=N_PATCHES + 1),
            )
        load_images()

    def batch(self, step: int, recipe: Recipe) -> Batch:
        pixels, labels = load_images()
        sampled = torch.randint(n_training(len(labels)), (recipe.batch,), generator=seeded_generator(recipe.seed, step))
        return to_batch(pixels[sampled], labels[sampled])

    def held_out_batches(self, recipe: Recipe) -> Iterator[Batch]:
        x, y = to_batch(*(part[n_training(len(part)) :] for part in load_images()))
        batch_size = recipe.batch // recipe.accumulate
        return zip(x.split(batch_size), y.split(batch_size), strict=True)

    def token_features(self) -> Float[Tensor, "v f"]:
        """The shades of the pixels of every patch, from −1 to 1, and a constant 1; zeros for all other tokens."""
        shades = torch.arange(CLASS_TOKEN)[:, None] // PLACE_VALUES % N_SHADES
        features = torch.cat([2 * shades / (N_SHADES - 1) - 1, torch.ones(CLASS_TOKEN, 1)], 1)
        return torch.cat([features, torch.zeros(1 + N_CLASSES, features.shape[1])])


def n_training(n_images: int) -> int:
    """The number of training images. They come first."""
    return n_images - n_images // HELD_OUT_DIVISOR


@cache
def load_images() -> tuple[Float[Tensor, "i 8 8"], Int[Tensor, " i"]]:
    """All images and their digits."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise RheoscopeError(
            Message("the digits recipe needs scikit-learn, which is not installed"),
            Advice("", "pip install 'rheoscope[train]'"),
        ) from error
    dataset = load_digits()
    return torch.from_numpy(dataset.images).float(), torch.from_numpy(dataset.target).long()


def to_batch(pixels: Float[Tensor, "i 8 8"], labels: Int[Tensor, " i"]) -> Batch:
    """Images as token ids, with the digit as the target of the class token."""
    x = functional.pad(patch_ids(pixels), (1, 0), value=CLASS_TOKEN)
    y = torch.full_like(x, IGNORE_INDEX)
    y[:, 0] = CLASS_TOKEN + 1 + labels
    return x, y


def patch_ids(pixels: Float[Tensor, "i 8 8"]) -> Int[Tensor, "i 16"]:
    """The ids of the patches of images: the shades of the pixels are the digits of a number in base 4.

    >>> dark = torch.zeros(1, 8, 8)
    >>> dark[0, 0, 1] = MAX_BRIGHTNESS
    >>> patch_ids(dark).tolist()[0][:3]
    [48, 0, 0]
    """
    shades = (pixels / MAX_BRIGHTNESS * (N_SHADES - 1)).round().long()
    patch_shades = shades.unflatten(1, (4, 2)).unflatten(3, (4, 2)).transpose(2, 3).flatten(1, 2).flatten(2)
    return (patch_shades * PLACE_VALUES).sum(-1)


PLACE_VALUES = N_SHADES ** torch.arange(PIXELS_PER_PATCH - 1, -1, -1)
"""The place value of each pixel in the id of its patch."""
