"""What a head does with sparse features: which features F writes into which, and which features M matches with which."""

from typing import TYPE_CHECKING, Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.lower.block_size import unblocked_numel
from rheoscope.messages.message import Message
from rheoscope.running.features import Features
from rheoscope.running.progress import tick
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.head import Head
from rheoscope.space.operator import Factored
from rheoscope.space.settings import Bounds, Choices, Draws, Seed, Top

if TYPE_CHECKING:
    import xarray

OperatorName = Annotated[str, Choices(("F", "M"))]
Offset = Annotated[int, Bounds(-1_000_000, 1_000_000, advised=1)]


@torch.no_grad()
def feature_map(
    head: Head,
    features: Features,
    reader: Features | None = None,
    operator: OperatorName = "F",
    offset: Offset = 0,
    top: Top = 20,
    draws: Draws = 10,
    seed: Seed = 0,
) -> "xarray.Dataset":
    """The strongest pairs of features of a head: what F makes of each feature, or which features M matches.

    **Question** Which features does this head turn into which, and which features does it look for where?

    **Formula** F: d_a F e_b for unit directions d_a of `features` and encoder directions e_b of `reader` (default: `features`), times
    the length of d_b, so that the unit of a feature does not matter. M: d_a M(offset) d_bᵀ, where a belongs to the query and b to the
    key. The scales of norms and of attention weights, which depend on the text, are left out.

    **Returns** (place): `value`, with the coordinates `feature_from` and `feature_to`, in decreasing order of |value|. `value_null` and
    `value_null_sd` are the mean and the standard deviation over `draws` of the value at this place, if all directions d_a are rotated
    together at random. (place): `z`.

    **Laws** Reparametrisations of the head that leave the logits unchanged leave every value unchanged, and so does another length of
    the directions with the inverse scale of the activations.

    **Source** Virtual weights between features: Elhage et al. 2021; Kamath et al. 2025, which attributes attention scores to pairs of
    features.

    **See also** `rs.score_attribution(trace, …, features=…)` sums over the features that are active on a text.

    >>> import rheoscope as rs
    >>> rs.feature_map(rs.load().view.head(5, 1), rs.Features.load(), top=3, draws=2).value.shape
    (3,)
    """
    reader = features if reader is None else reader
    for dictionary in (features, reader):
        _check_width(head, dictionary)
    n_pairs = len(features) * len(reader)
    top = min(top, n_pairs)
    directions = unit_directions(features, head.F.left)
    A, read = (
        (head.F, encoder_directions(reader, directions).mT)
        if operator == "F"
        else (
            head.M(offset),
            unit_directions(reader, directions),
        )
    )
    values, pairs = kernel(A, directions, read, top)
    null = (
        torch.stack([*_null_values(A, directions, read, top, draws, seed)])
        if draws
        else values.new_full((1, top), torch.nan)
    )
    null_mean = null.mean(0)
    null_sd = null.std(0) if draws > 1 else torch.full_like(null_mean, torch.nan)
    coords = {
        "place": range(1, top + 1),
        "feature_from": ("place", (pairs // len(reader)).tolist()),
        "feature_to": ("place", (pairs % len(reader)).tolist()),
    }
    arrays = {
        "value": values,
        "value_null": null_mean,
        "value_null_sd": null_sd,
        "z": (values.abs() - null_mean) / null_sd,
    }
    attributes = {
        "layer": head.layer,
        "head": head.head,
        "operator": operator,
        "offset": offset,
        "draws": draws,
        "seed": seed,
    }
    return FEATURE_MAP.label(arrays, coords, attributes | features.provenance)


def kernel(
    A: Factored, directions: Float[Tensor, "m d"], read: Float[Tensor, "n d"], top: int
) -> tuple[Float[Tensor, " top"], Int[Tensor, " top"]]:
    """The `top` largest |d_a A r_bᵀ| of all pairs with their sign, and the pairs as a · n + b. Pairs are visited in blocks of rows."""
    left, right = directions @ A.left, A.right @ read.mT
    rows = max(1, unblocked_numel(left.device) // max(1, right.shape[-1]))
    values, pairs = left.new_zeros(0), torch.zeros(0, dtype=torch.long, device=left.device)
    for start in range(0, len(left), rows):
        block = (left[start : start + rows] @ right).flatten()
        largest = block.abs().topk(min(top, len(block))).indices
        values, pairs = torch.cat([values, block[largest]]), torch.cat([pairs, largest + start * right.shape[-1]])
        order = values.abs().argsort(descending=True, stable=True)[:top]
        values, pairs = values[order], pairs[order]
    return values, pairs


def unit_directions(features: Features, template: Tensor) -> Float[Tensor, "m d"]:
    """The directions that features write, at length 1. A direction of length 0 stays 0."""
    return torch.nn.functional.normalize(features.W_dec.to(template), dim=-1)


def encoder_directions(features: Features, template: Tensor) -> Float[Tensor, "d m"]:
    """What features read, times the length of what they write: activations in units of length."""
    return features.W_enc.to(template) * features.W_dec.to(template).norm(dim=-1)


def _null_values(A: Factored, directions: Tensor, read: Tensor, top: int, draws: int, seed: int):  # type: ignore[no-untyped-def]
    """The sorted |values| if the directions are rotated at random."""
    generator = torch.Generator().manual_seed(seed)
    for draw in range(draws):
        tick(draw, draws)
        normal = torch.randn(directions.shape[-1], directions.shape[-1], generator=generator)
        rotation = torch.linalg.qr(normal).Q.to(directions)
        yield kernel(A, directions @ rotation, read, top)[0].abs()


def _check_width(head: Head, features: Features) -> None:
    width = head.heads.W_Q.shape[1]
    if features.width != width or features.W_dec.shape[-1] != width:
        raise RheoscopeError(
            Message(
                "the dictionary {name!r} has width {received}, but the model has width {expected}",
                name=features.name,
                received=features.width,
                expected=width,
            )
        )


FEATURE_MAP = Analysis(
    name="feature_map",
    question="Which features does this head turn into which, and which does it match?",
    ask=feature_map,
    needs="view",
    fields={
        "value": Field(
            ("place",),
            "d_a F e_b of a pair of features, or d_a M d_bᵀ, for unit directions d",
            null="value_null",
            null_sd="value_null_sd",
        ),
        "value_null": Field(
            ("place",), "mean of |value| at this place if all directions are rotated together at random"
        ),
        "value_null_sd": Field(("place",), "standard deviation of this |value| over the draws"),
        "z": Field(("place",), "|value| minus its mean under the null, in standard deviations"),
    },
)
