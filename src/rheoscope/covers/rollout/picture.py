"""Is attention a flow? Rollout beside the true derivative, token by token and against each other."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.picture import Axis, Line, Panel, Picture, depth_colour, format_value
from rheoscope.picture.token_labels import display_token

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "Where the last place of a token comes from: attention multiplied through the layers (rollout), and the "
    "derivative by every embedding. Were attention the flow, both would tell the same. "
)


def picture(dataset: "xarray.Dataset") -> Picture:
    """Shares of every token, and one share against the other."""
    correlation_text = (
        f"Over the tokens before it their Spearman correlation is {format_value(float(dataset.correlation))}; "
        "with equal weights everywhere, "
        f"which is what the mask alone explains, {format_value(float(dataset.correlation_null))}."
    )
    token_label = token_labels(dataset)[int(dataset.attrs["token"])]
    return Picture(
        f"Is attention a flow? Token {token_label}",
        CAPTION + correlation_text,
        (share_panel(dataset), scatter_panel(dataset)),
    )


def share_panel(dataset: "xarray.Dataset") -> Panel:
    """A pair of dots a token."""
    names = token_labels(dataset)
    x = range(len(names))
    lines = (
        Line("rollout", x, dataset.rollout.values, "second", "dots"),
        Line("derivative", x, dataset.jacobian.values, "first", "dots"),
    )
    description = f"Rollout: {dataset.rollout.attrs['definition']}. Derivative: {dataset.jacobian.attrs['definition']}."
    return Panel("Share of every token", description, lines, Axis("token", names), Axis(log=True), columns=2)


def scatter_panel(dataset: "xarray.Dataset") -> Panel:
    """A dot a token, blue the first."""
    names, own_index = token_labels(dataset), int(dataset.attrs["token"])
    x, y = dataset.rollout.values, dataset.jacobian.values
    dots = tuple(
        Line(
            names[index],
            x[index : index + 1],
            y[index : index + 1],
            depth_colour(index, len(names)),
            "dots",
            f"{names[index]}: rollout {format_value(float(x[index]))}, derivative {format_value(float(y[index]))}",
        )
        for index in np.flatnonzero((x > 0) & (y > 0)).tolist()
        if index != own_index
    )
    description = (
        "One dot a token before it, blue the first in the text, red the last; on a rising line both would agree."
    )
    return Panel("One against the other", description, dots, Axis("rollout", log=True), Axis("derivative", log=True))


def token_labels(dataset: "xarray.Dataset") -> tuple[str, ...]:
    return tuple(
        f"{token} {display_token(str(token_text))}"
        for token, token_text in zip(dataset.token.values, dataset.token_text.values, strict=True)
    )
