"""The loss when weights move along the gradient of their scores, beside what the first order says."""

from typing import TYPE_CHECKING

from rheoscope.picture.head_map import TYPED, head_map
from rheoscope.picture.picture import Axis, Line, Panel, Picture

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "Weights A become A + ηR after the softmax, R the gradient of the scores. Left of 0 the loss falls as the dashed line says, until "
    "the step is too large for a first order. The map says how much of the slope is each head's."
)


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """The loss over η, and the slope of every head."""
    caption = CAPTION + TYPED * (types is not None)
    return Picture(
        "Attention moved along the gradient of its scores", caption, (curve(dataset), slopes(dataset, types))
    )


def curve(dataset: "xarray.Dataset") -> Panel:
    ordered = dataset.sortby("eta")
    eta = ordered.eta.values
    marks = (
        Line("loss", eta, ordered.loss.values, "first"),
        Line("first order", eta, ordered.predicted.values, "null", "dashed"),
    )
    return Panel("Loss of the target, nats", dataset.loss.attrs["definition"], marks, Axis("η"), columns=2)


def slopes(dataset: "xarray.Dataset", types: "xarray.Dataset | None") -> Panel:
    """One square a head."""
    values = dataset.slope.values
    reach = max(float(abs(values).max()), 1e-30)
    return head_map(
        "Slope of every head", dataset.slope.attrs["definition"], values, (-reach, reach), types=types, name="slope"
    )
