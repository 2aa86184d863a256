"""The picture of patching: effects of points, of MLP updates, and of heads through their weights and their values."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message, join
from rheoscope.picture.head_map import TYPES_CAPTION, head_map
from rheoscope.picture.picture import Axis, Cells, Panel, Picture, format_value
from rheoscope.picture.token_labels import display_token, step_names

if TYPE_CHECKING:
    import xarray

CAPTION = Message(
    "The other text runs with one part from this text. An effect of 1 means that this part alone restores the prediction of this "
    "text. An effect of 0 means that nothing changes. Weights depend on M, values on F."
)
HEAD_TITLES = {
    "output": Message("Heads: output"),
    "weights": Message("Heads: weights alone (M)"),
    "values": Message("Heads: values alone (F)"),
}


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """Maps over tokens (stream, MLP updates, strongest heads) and maps of heads (output, weights, values)."""
    restored = dataset.sel(direction="restore")
    layers = [f"L{layer}" for layer in dataset.layer.values]
    caption = join(" ", [CAPTION, *([] if types is None else [TYPES_CAPTION])])
    return Picture(
        Message("What carries the difference between two texts"),
        caption,
        (
            token_map(restored, "stream", Message("Stream"), step_names(dataset.step.values)),
            token_map(restored, "mlp", Message("MLP updates"), layers),
            *effect_head_maps(dataset, HEAD_TITLES, types),
            token_map(
                restored, "head_token", Message("Head outputs at one token"), list(map(str, dataset.strong_head.values))
            ),
        ),
    )


def token_map(restored: "xarray.Dataset", name: str, title: Message, rows: list[str]) -> Panel:
    """One cell per step or layer and token."""
    tokens = [display_token(str(token)) for token in restored.token_text.values]
    values = restored[name].values
    tips = [
        [
            Message("{step}, {token}: {effect}", step=row, token=token, effect=format_value(value))
            for token, value in zip(tokens, row_values, strict=True)
        ]
        for row, row_values in zip(rows, values, strict=True)
    ]
    cells = Cells(values, tips=tips, low=-1.0, high=1.0, name=Message("effect"))
    x_axis, y_axis = Axis("", tuple(tokens)), Axis("", tuple(rows))
    height = max(1.2, (len(rows) * 12 + 70) / 236)
    return Panel(title, restored[name].attrs["definition"], (cells,), x_axis, y_axis, columns=3, height=height)


def effect_head_maps(
    dataset: "xarray.Dataset", titles: Mapping[str, Message], types: "xarray.Dataset | None"
) -> list[Panel]:
    """One map per field, with one cell per head; both directions are in its tooltip. The maps share a scale."""
    strongest = max(float(np.nanmax(np.abs(dataset[name].values), initial=1e-30)) for name in titles)
    return [
        head_map(
            title,
            dataset[name].attrs["definition"],
            dataset[name].sel(direction="restore").values,
            (-strongest, strongest),
            tip_values={Message("disrupt"): dataset[name].sel(direction="disrupt").values},
            types=types,
            name=Message("effect"),
        )
        for name, title in titles.items()
    ]
