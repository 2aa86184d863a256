"""Handwritten digits as a task: patches of an image are tokens, one more token asks which digit they show."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from rheoscope.models.recipes import Recipe
from rheoscope.models.task import Batch, TokenPrediction, check_form
from rheoscope.models.token_corpus import IGNORE_INDEX, seeded_generator
from rheoscope.shapes import RheoscopeError

N_SHADES, PIXELS_PER_PATCH, N_PATCHES, N_CLASSES = 4, 4, 16, 10
"""Shades of a pixel, pixels of a patch, patches of an image, digits."""
CLASS_TOKEN = N_SHADES**PIXELS_PER_PATCH
"""The token that asks; the digits come after it."""
MAX_BRIGHTNESS = 16
"""Of a pixel as it is stored."""
HELD_OUT_DIVISOR = 5
"""One image in so many, the last ones, is held out."""


@dataclass(frozen=True)
class DigitsTask(TokenPrediction):
    """Which digit an image shows: 16 patches of 2 × 2 pixels are tokens, the answer stands at one more that asks.

    **Formula** a pixel has one of 4 shades, a patch one of 4⁴ = 256 ids; 256 asks, 257 … 266 are the digits. A row is the
    asking token and then the patches, line after line. The loss is at the asking token alone. `known` are the shades of the four
    pixels: at the start the embedding is a linear map of them, as that of images is.

    **Laws** a batch is a function of (seed, step); no held-out image is trained on; what an image is does not depend on which
    others are beside it; chance is log 10.

    **Source** scikit-learn's digits, 1,797 images, of which the last fifth is held out; after the digits of arXiv:2412.18288, whose
    protocol is known from its abstract alone: the form is ours.

    **Siblings** `TwoMoons` is the other small task of that paper.
    """

    @property
    def vocabulary(self) -> int:
        return CLASS_TOKEN + 1 + N_CLASSES

    @property
    def ignore_index(self) -> int:
        return IGNORE_INDEX

    def check(self, recipe: Recipe) -> None:
        check_form(recipe, "encoder", "images are")
        if recipe.context != N_PATCHES + 1:
            raise RheoscopeError(
                f"an image is {N_PATCHES + 1} tokens, got context={recipe.context}; type --set context={N_PATCHES + 1}"
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
        """The shades of the pixels of every patch, from −1 to 1, and 1 besides; nothing of the other tokens."""
        shades = torch.arange(CLASS_TOKEN)[:, None] // PLACE_VALUES % N_SHADES
        features = torch.cat([2 * shades / (N_SHADES - 1) - 1, torch.ones(CLASS_TOKEN, 1)], 1)
        return torch.cat([features, torch.zeros(1 + N_CLASSES, features.shape[1])])


def n_training(n_images: int) -> int:
    """How many of the images are trained on, the first ones."""
    return n_images - n_images // HELD_OUT_DIVISOR


@cache
def load_images() -> tuple[Float[Tensor, "i 8 8"], Int[Tensor, " i"]]:
    """All images, and the digit that each shows."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise RheoscopeError(
            "the digits are scikit-learn's, which is not here; type pip install 'rheoscope[train]'"
        ) from error
    dataset = load_digits()
    return torch.from_numpy(dataset.images).float(), torch.from_numpy(dataset.target).long()


def to_batch(pixels: Float[Tensor, "i 8 8"], labels: Int[Tensor, " i"]) -> Batch:
    """Images as tokens, and what is to be said of each."""
    x = functional.pad(patch_ids(pixels), (1, 0), value=CLASS_TOKEN)
    y = torch.full_like(x, IGNORE_INDEX)
    y[:, 0] = CLASS_TOKEN + 1 + labels
    return x, y


def patch_ids(pixels: Float[Tensor, "i 8 8"]) -> Int[Tensor, "i 16"]:
    """The ids of the patches of images: its pixels, rounded to few shades, are the digits of a number.

    >>> dark = torch.zeros(1, 8, 8)
    >>> dark[0, 0, 1] = MAX_BRIGHTNESS
    >>> patch_ids(dark).tolist()[0][:3]
    [48, 0, 0]
    """
    shades = (pixels / MAX_BRIGHTNESS * (N_SHADES - 1)).round().long()
    patch_shades = shades.unflatten(1, (4, 2)).unflatten(3, (4, 2)).transpose(2, 3).flatten(1, 2).flatten(2)
    return (patch_shades * PLACE_VALUES).sum(-1)


PLACE_VALUES = N_SHADES ** torch.arange(PIXELS_PER_PATCH - 1, -1, -1)
"""What a shade of each pixel of a patch adds to its id."""
