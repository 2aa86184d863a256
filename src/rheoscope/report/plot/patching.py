"""The loss when weights move along the gradient of their scores, beside what the first order says."""

from typing import TYPE_CHECKING, Any

from rheoscope.report.draw.notebook import in_notebook
from rheoscope.report.draw.paper import on_paper
from rheoscope.report.picture import Axis, Cells, Line, Panel, Picture

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

CAPTION = (
    "Weights A become A + ηR after the softmax, R the gradient of the scores. Left of 0 the loss falls as the dashed line says, until "
    "the step is too large for a first order. The map says how much of the slope is each head's."
)


def picture_patching(dataset: "xarray.Dataset") -> Picture:
    """The loss over η, and the slope of every head."""
    return Picture("Attention moved along the gradient of its scores", CAPTION, (curve(dataset), slopes(dataset)))


def curve(dataset: "xarray.Dataset") -> Panel:
    ordered = dataset.sortby("eta")
    eta = ordered.eta.values
    marks = (
        Line("loss", eta, ordered.loss.values, "first"),
        Line("first order", eta, ordered.predicted.values, "null", "dashed"),
    )
    return Panel("Loss of the target, nats", dataset.loss.attrs["definition"], marks, Axis("η"), columns=2)


def slopes(dataset: "xarray.Dataset") -> Panel:
    """One square a head."""
    values = dataset.slope.values
    layers, count = values.shape
    reach = max(float(abs(values).max()), 1e-30)
    tips = [[f"L{a}.H{b}: {values[a, b]:.4g}" for b in range(count)] for a in range(layers)]
    sides = Axis("head", tuple(map(str, range(count)))), Axis("", tuple(f"L{layer}" for layer in range(layers)))
    marks = (Cells(values, tips=tips, low=-reach, high=reach),)
    return Panel(
        "Slope of every head",
        dataset.slope.attrs["definition"],
        marks,
        *sides,
        height=max(0.8, (layers * 9 + 46) / 236),
    )


def plot_patching(dataset: "xarray.Dataset") -> "Figure":
    """The picture with matplotlib, for papers."""
    return on_paper(picture_patching(dataset))


def interactive_patching(dataset: "xarray.Dataset") -> Any:
    """The picture with plotly, for notebooks."""
    return in_notebook(picture_patching(dataset))
