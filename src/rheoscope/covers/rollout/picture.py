"""Is attention a flow? Rollout beside the true derivative, token by token and against each other."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.picture import Axis, Line, Panel, Picture, along, number
from rheoscope.picture.token_labels import shown

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "Where the last place of a token comes from: attention multiplied through the layers (rollout), and the "
    "derivative by every embedding. Were attention the flow, both would tell the same. "
)


def picture(dataset: "xarray.Dataset") -> Picture:
    """Shares of every token, and one share against the other."""
    said = (
        f"Over the tokens before it their Spearman correlation is {number(float(dataset.correlation))}; with equal weights everywhere, "
        f"which is what the mask alone explains, {number(float(dataset.correlation_null))}."
    )
    token = words(dataset)[int(dataset.attrs["token"])]
    return Picture(f"Is attention a flow? Token {token}", CAPTION + said, (shares(dataset), against(dataset)))


def shares(dataset: "xarray.Dataset") -> Panel:
    """A pair of dots a token."""
    names = words(dataset)
    at = range(len(names))
    lines = (
        Line("rollout", at, dataset.rollout.values, "second", "dots"),
        Line("derivative", at, dataset.jacobian.values, "first", "dots"),
    )
    about = f"Rollout: {dataset.rollout.attrs['definition']}. Derivative: {dataset.jacobian.attrs['definition']}."
    return Panel("Share of every token", about, lines, Axis("token", names), Axis(log=True), columns=2)


def against(dataset: "xarray.Dataset") -> Panel:
    """A dot a token, blue the first."""
    names, own = words(dataset), int(dataset.attrs["token"])
    x, y = dataset.rollout.values, dataset.jacobian.values
    dots = tuple(
        Line(
            names[at],
            x[at : at + 1],
            y[at : at + 1],
            along(at, len(names)),
            "dots",
            f"{names[at]}: rollout {number(float(x[at]))}, derivative {number(float(y[at]))}",
        )
        for at in np.flatnonzero((x > 0) & (y > 0)).tolist()
        if at != own
    )
    about = "One dot a token before it, blue the first in the text, red the last; on a rising line both would agree."
    return Panel("One against the other", about, dots, Axis("rollout", log=True), Axis("derivative", log=True))


def words(dataset: "xarray.Dataset") -> tuple[str, ...]:
    return tuple(
        f"{token} {shown(str(word))}" for token, word in zip(dataset.token.values, dataset.word.values, strict=True)
    )
