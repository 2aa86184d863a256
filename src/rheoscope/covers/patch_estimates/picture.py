"""The picture of patching by estimate: the maps of `patch`, next to the exact effects of a sample."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.covers.patch.picture import effect_head_maps, token_map
from rheoscope.messages.message import Message, join
from rheoscope.messages.numbers import format_fixed
from rheoscope.picture.head_map import TYPES_CAPTION
from rheoscope.picture.picture import Panel, Picture
from rheoscope.picture.token_labels import step_names

if TYPE_CHECKING:
    import xarray

MAX_HEADS = 8
"""The number of heads in the map of heads and tokens."""
CAPTION = Message(
    "Effects estimated from gradients, where 1 means that this part alone restores the prediction of this text. The maps of the "
    "sample show exact effects of the same parts."
)


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """Maps of the estimates over tokens and heads, and maps of the exact effects of the sample."""
    restored = dataset.sel(direction="restore")
    layers = [f"L{layer}" for layer in dataset.layer.values]
    caption = join(" ", [CAPTION, error_note(dataset), *([] if types is None else [TYPES_CAPTION])])
    sampled_steps, sampled_heads = step_names(dataset.sampled_step.values), list(map(str, dataset.sampled_head.values))
    return Picture(
        Message("What probably carries the difference between two texts"),
        caption,
        (
            token_map(restored, "stream", Message("Stream, estimated"), step_names(dataset.step.values)),
            token_map(restored, "mlp", Message("MLP updates, estimated"), layers),
            *effect_head_maps(dataset, {"output": Message("Heads: output, estimated")}, types),
            strongest_heads_map(restored),
            token_map(restored, "exact_stream", Message("Stream, exact sample"), sampled_steps),
            token_map(restored, "exact_head_token", Message("Head outputs at one token, exact sample"), sampled_heads),
        ),
    )


def error_note(dataset: "xarray.Dataset") -> Message:
    """How well the estimates agree with the exact effects of the sample."""
    return Message(
        "Estimates of sampled points correlate by {stream} with exact effects, and estimates of sampled heads by {heads}.",
        stream=format_fixed(float(dataset.stream_correlation)),
        heads=format_fixed(float(dataset.head_correlation)),
    )


def strongest_heads_map(restored: "xarray.Dataset") -> Panel:
    """The heads with the largest estimates at one token, the largest first."""
    by_head = restored.stack(place=("layer", "head")).transpose("place", "token", ...)
    largest = np.nanmax(np.abs(by_head.head_token.values), axis=1)
    strongest = by_head.isel(place=np.argsort(-largest, kind="stable")[:MAX_HEADS])
    names = [f"L{layer}.H{head}" for layer, head in strongest.place.values]
    return token_map(strongest, "head_token", Message("Head outputs at one token, estimated"), names)
