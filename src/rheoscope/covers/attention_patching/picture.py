"""The picture of attention patching: the loss over η with its first-order prediction, and the slope of every head."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message, join
from rheoscope.picture.head_map import TYPES_CAPTION, head_map
from rheoscope.picture.picture import Axis, Line, Panel, Picture

if TYPE_CHECKING:
    import xarray

CAPTION = Message(
    "After the softmax, A + ηR replaces the weights A, where R is the gradient of the scores. Left of 0 the loss falls along "
    "the dashed line until the step is too large for a first-order prediction. The map shows each head's share of the slope."
)


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """The loss over η, and the slope of every head."""
    caption = join(" ", [CAPTION, *([] if types is None else [TYPES_CAPTION])])
    title = Message("Attention moved along the gradient of its scores")
    return Picture(title, caption, (loss_panel(dataset), slope_map(dataset, types)))


def loss_panel(dataset: "xarray.Dataset") -> Panel:
    """The measured loss over η, and its first-order prediction."""
    by_eta = dataset.sortby("eta")
    eta = by_eta.eta.values
    marks = (
        Line(Message("loss"), eta, by_eta.loss.values, "first"),
        Line(Message("first order"), eta, by_eta.predicted_loss.values, "null", "dashed"),
    )
    title, definition = Message("Loss of the target, nats"), dataset.loss.attrs["definition"]
    return Panel(title, definition, marks, Axis("η"), columns=2)


def slope_map(dataset: "xarray.Dataset", types: "xarray.Dataset | None") -> Panel:
    """A map of the slopes of all heads."""
    values, definition = dataset.slope.values, dataset.slope.attrs["definition"]
    limit = max(float(abs(values).max()), 1e-30)
    return head_map(
        Message("Slope of every head"), definition, values, (-limit, limit), types=types, name=Message("slope")
    )
