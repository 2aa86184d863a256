"""Handwritten digits as a task: patches of an image are tokens, one more token asks which digit they show."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from rheoscope.models.recipes import Recipe
from rheoscope.models.task import Batch, Predicted, check_form
from rheoscope.models.token_corpus import IGNORED, seeded
from rheoscope.shapes import RheoscopeError

SHADES, PIXELS, PATCHES, CLASSES = 4, 4, 16, 10
"""Shades of a pixel, pixels of a patch, patches of an image, digits."""
ASK = SHADES**PIXELS
"""The token that asks; the digits come after it."""
BRIGHTEST = 16
"""Of a pixel as it is stored."""
HELD_OUT_SHARE = 5
"""One image in so many, the last ones, is held out."""


@dataclass(frozen=True)
class Digits(Predicted):
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
        return ASK + 1 + CLASSES

    @property
    def ignored(self) -> int:
        return IGNORED

    def check(self, recipe: Recipe) -> None:
        check_form(recipe, "encoder", "images are")
        if recipe.context != PATCHES + 1:
            raise RheoscopeError(
                f"an image is {PATCHES + 1} tokens, got context={recipe.context}; type --set context={PATCHES + 1}"
            )
        images()

    def batch(self, step: int, recipe: Recipe) -> Batch:
        pixels, digit = images()
        chosen = torch.randint(trained(len(digit)), (recipe.batch,), generator=seeded(recipe.seed, step))
        return asked(pixels[chosen], digit[chosen])

    def held_out(self, recipe: Recipe) -> Iterator[Batch]:
        x, y = asked(*(part[trained(len(part)) :] for part in images()))
        rows = recipe.batch // recipe.accumulate
        return zip(x.split(rows), y.split(rows), strict=True)

    def known(self) -> Float[Tensor, "v f"]:
        """The shades of the pixels of every patch, from −1 to 1, and 1 besides; nothing of the other tokens."""
        shades = torch.arange(ASK)[:, None] // WORTH % SHADES
        known = torch.cat([2 * shades / (SHADES - 1) - 1, torch.ones(ASK, 1)], 1)
        return torch.cat([known, torch.zeros(1 + CLASSES, known.shape[1])])


def trained(images: int) -> int:
    """How many of the images are trained on, the first ones."""
    return images - images // HELD_OUT_SHARE


@cache
def images() -> tuple[Float[Tensor, "i 8 8"], Int[Tensor, " i"]]:
    """All images, and the digit that each shows."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise RheoscopeError(
            "the digits are scikit-learn's, which is not here; type pip install 'rheoscope[train]'"
        ) from error
    found = load_digits()
    return torch.from_numpy(found.images).float(), torch.from_numpy(found.target).long()


def asked(pixels: Float[Tensor, "i 8 8"], digit: Int[Tensor, " i"]) -> Batch:
    """Images as tokens, and what is to be said of each."""
    x = functional.pad(patches(pixels), (1, 0), value=ASK)
    y = torch.full_like(x, IGNORED)
    y[:, 0] = ASK + 1 + digit
    return x, y


def patches(pixels: Float[Tensor, "i 8 8"]) -> Int[Tensor, "i 16"]:
    """The ids of the patches of images: its pixels, rounded to few shades, are the digits of a number.

    >>> dark = torch.zeros(1, 8, 8)
    >>> dark[0, 0, 1] = BRIGHTEST
    >>> patches(dark).tolist()[0][:3]
    [48, 0, 0]
    """
    shades = (pixels / BRIGHTEST * (SHADES - 1)).round().long()
    apart = shades.unflatten(1, (4, 2)).unflatten(3, (4, 2)).transpose(2, 3).flatten(1, 2).flatten(2)
    return (apart * WORTH).sum(-1)


WORTH = SHADES ** torch.arange(PIXELS - 1, -1, -1)
"""What a shade of each pixel of a patch adds to its id."""
