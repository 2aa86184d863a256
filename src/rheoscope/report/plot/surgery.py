"""What a change of M or F costs: the edit beside random changes and ablations, and text by text."""

from typing import TYPE_CHECKING, Any

from rheoscope.report.draw.notebook import in_notebook
from rheoscope.report.draw.paper import on_paper
from rheoscope.report.picture import Axis, Line, Panel, Picture

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

NAMES = {
    "edit": "edit",
    "size": "random, same size",
    "cloud": "random, as large",
    "spectrum": "turned at random",
    "mean": "mean ablation",
    "uniform": "even attention",
}
COLOURS = {"edit": "first", "size": "null", "cloud": "null", "spectrum": "null", "mean": "second", "uniform": "third"}
CAPTION = (
    "Nats per token that a change costs, with 95 % bootstrap intervals over texts. The edit says something of the model where it lies "
    "apart from random changes (grey: of the same size in E, as large on the text, of the same spectrum); the ablations say what the "
    "heads are worth at all."
)


def picture_surgery(dataset: "xarray.Dataset") -> Picture:
    """Costs with their intervals, and the losses of every text."""
    title = f"What it costs: {dataset.attrs['replaces']} in {heads_of(dataset)}"
    return Picture(title, CAPTION, (costs(dataset), texts(dataset)))


def heads_of(dataset: "xarray.Dataset") -> str:
    """The changed heads in words: all, those of a layer, or some."""
    heads = str(dataset.attrs["heads"])
    return "all heads" if heads == "all" else f"heads {heads}" if "." in heads else f"all heads of {heads}"


def costs(dataset: "xarray.Dataset") -> Panel:
    """A dot a change, and its interval; the edit on top."""
    marks, changes = [], [str(name) for name in dataset.change.values][::-1]
    for at, name in enumerate(changes):
        row = dataset.sel(change=name)
        cost, low, high = (float(row[field]) for field in ("cost", "cost_low", "cost_high"))
        tip = f"{NAMES[name]}: {cost:+.4f} ({low:+.4f} … {high:+.4f})"
        marks += [
            Line("", (low, high), (at, at), COLOURS[name], tip=tip),
            Line("", (cost,), (at,), COLOURS[name], "dots", tip),
        ]
    marks.append(Line("", (0.0, 0.0), (-0.5, len(changes) - 0.5), "null", "dashed"))
    y = Axis("", tuple(NAMES[name] for name in changes), low=-0.5, high=len(changes) - 0.5)
    about = dataset.cost.attrs["definition"]
    return Panel("Cost, nats per token", about, tuple(marks), Axis("nats per token"), y, columns=2)


def texts(dataset: "xarray.Dataset") -> Panel:
    """The loss of every text, before and after, and under the random change of the same size."""
    at = range(dataset.sizes["text"])
    lines = [
        Line("before", at, dataset.loss_before.values, "second", "dots"),
        Line("after", at, dataset.loss_after.values, "first", "dots"),
    ]
    if "loss_control" in dataset and "size" in dataset.control.values:
        lines.append(Line("random", at, dataset.loss_control.sel(control="size").values, "null", "dots"))
    names = Axis("piece of text", tuple(str(one) for one in at))
    return Panel("Loss of every text", dataset.loss_after.attrs["definition"], tuple(lines), names)


def plot_surgery(dataset: "xarray.Dataset") -> "Figure":
    """The picture with matplotlib, for papers."""
    return on_paper(picture_surgery(dataset))


def interactive_surgery(dataset: "xarray.Dataset") -> Any:
    """The picture with plotly, for notebooks."""
    return in_notebook(picture_surgery(dataset))
