"""The loss when weights move along the gradient of their scores, beside what the first order says."""

from typing import TYPE_CHECKING

from rheoscope.picture.head_map import TYPES_CAPTION, head_map
from rheoscope.picture.picture import Axis, Line, Panel, Picture

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "Weights A become A + ηR after the softmax, R the gradient of the scores. Left of 0 the loss falls as the dashed line says, until "
    "the step is too large for a first order. The map says how much of the slope is each head's."
)


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """The loss over η, and the slope of every head."""
    caption = CAPTION + TYPES_CAPTION * (types is not None)
    return Picture(
        "Attention moved along the gradient of its scores", caption, (loss_panel(dataset), slope_map(dataset, types))
    )


def loss_panel(dataset: "xarray.Dataset") -> Panel:
    by_eta = dataset.sortby("eta")
    eta = by_eta.eta.values
    marks = (
        Line("loss", eta, by_eta.loss.values, "first"),
        Line("first order", eta, by_eta.predicted.values, "null", "dashed"),
    )
    return Panel("Loss of the target, nats", dataset.loss.attrs["definition"], marks, Axis("η"), columns=2)


def slope_map(dataset: "xarray.Dataset", types: "xarray.Dataset | None") -> Panel:
    """One square a head."""
    values = dataset.slope.values
    limit = max(float(abs(values).max()), 1e-30)
    return head_map(
        "Slope of every head", dataset.slope.attrs["definition"], values, (-limit, limit), types=types, name="slope"
    )
