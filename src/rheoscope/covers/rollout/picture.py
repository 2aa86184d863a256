"""The picture of `rollout`: both shares per token, and one against the other."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message
from rheoscope.picture.picture import Axis, Line, Panel, Picture, depth_colour, format_value
from rheoscope.picture.token_labels import display_token

if TYPE_CHECKING:
    import xarray


def picture(dataset: "xarray.Dataset") -> Picture:
    """The shares of every token, and one share against the other."""
    caption = Message(
        "The share of every token in the last point of one token, by attention multiplied through the layers (rollout) and by the "
        "derivative. If attention were the flow of information, both would agree. Their Spearman correlation over the other visible tokens "
        "is {correlation} (standard error of the random probes {error}). Uniform attention, which only knows the mask, has {null}.",
        correlation=format_value(float(dataset.correlation)),
        error=format_value(float(dataset.correlation_error)),
        null=format_value(float(dataset.correlation_null)),
    )
    title = Message("Is attention a flow? Token {token}", token=token_labels(dataset)[int(dataset.attrs["token"])])
    return Picture(title, caption, (share_panel(dataset), scatter_panel(dataset)))


def share_panel(dataset: "xarray.Dataset") -> Panel:
    """Both shares of every token as dots."""
    names = token_labels(dataset)
    x = range(len(names))
    lines = (
        Line(Message("rollout"), x, dataset.rollout.values, "second", "dots"),
        Line(Message("derivative"), x, dataset.jacobian.values, "first", "dots"),
    )
    description = Message(
        "Rollout: {rollout}. Derivative: {derivative}.",
        rollout=dataset.rollout.attrs["definition"],
        derivative=dataset.jacobian.attrs["definition"],
    )
    token_axis = Axis(Message("token"), names)
    return Panel(Message("Share of every token"), description, lines, token_axis, Axis(log=True), columns=2)


def scatter_panel(dataset: "xarray.Dataset") -> Panel:
    """One dot per token, coloured from the first (blue) to the last (red)."""
    names, own_index = token_labels(dataset), int(dataset.attrs["token"])
    x, y = dataset.rollout.values, dataset.jacobian.values
    dots = tuple(
        Line(
            names[index],
            x[index : index + 1],
            y[index : index + 1],
            depth_colour(index, len(names)),
            "dots",
            Message(
                "{token}: rollout {rollout}, derivative {derivative} ± {error}",
                token=names[index],
                rollout=format_value(float(x[index])),
                derivative=format_value(float(y[index])),
                error=format_value(float(dataset.jacobian_error[index])),
            ),
        )
        for index in np.flatnonzero((x > 0) & (y > 0)).tolist()
        if index != own_index
    )
    description = Message(
        "One dot per other token, from blue (first in the text) to red (last). Both agree if the dots lie on a rising line."
    )
    axes = Axis(Message("rollout"), log=True), Axis(Message("derivative"), log=True)
    return Panel(Message("Derivative against rollout"), description, dots, *axes)


def token_labels(dataset: "xarray.Dataset") -> tuple[str, ...]:
    return tuple(
        f"{token} {display_token(str(token_text))}"
        for token, token_text in zip(dataset.token.values, dataset.token_text.values, strict=True)
    )
