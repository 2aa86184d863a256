"""What the scores of every head are made of: a map of layers x heads for every part."""

from typing import TYPE_CHECKING, Any

from rheoscope.report.draw.notebook import in_notebook
from rheoscope.report.draw.paper import on_paper
from rheoscope.report.picture import Axis, Cells, Panel, Picture

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

TITLES = {
    "centred": "The form on the cloud",
    "mean_query": "Keys the mean asks for",
    "mean_key": "The mean as key",
    "query_bias": "Bias of queries",
    "key_bias": "Bias of keys",
    "spread": "Spread of the scores (nats)",
    "positive_share_cloud": "Positive share on the cloud",
}
CAPTION = (
    "Shares of what softmax sees of the scores; they add up to 1, and a part that works against the others is negative "
    "(orange). Where the form on the cloud is large, a head compares tokens; where the mean or a bias is, the keys are chosen "
    "whoever asks. The positive share is near one half for a form without preference."
)


def picture_scores(dataset: "xarray.Dataset") -> Picture:
    """A map for every part that is anywhere at work."""
    used = [name for name in TITLES if float(abs(dataset[name]).max()) > 0]
    return Picture("What scores are made of", CAPTION, tuple(heads(dataset, name) for name in used))


def heads(dataset: "xarray.Dataset", name: str) -> Panel:
    """One square a head, a row a layer."""
    values = dataset[name].values
    layers, count = values.shape
    tips = [[f"L{layer}.H{head}: {values[layer, head]:.3f}" for head in range(count)] for layer in range(layers)]
    high = float(values.max()) if name == "spread" else 1.0
    marks = (Cells(values, tips=tips, low=0.0 if name == "spread" else -1.0, high=high),)
    sides = Axis("head", tuple(str(h) for h in range(count))), Axis("", tuple(f"L{layer}" for layer in range(layers)))
    return Panel(
        TITLES[name], dataset[name].attrs["definition"], marks, *sides, height=max(0.8, (layers * 9 + 46) / 236)
    )


def plot_scores(dataset: "xarray.Dataset") -> "Figure":
    """The picture with matplotlib, for papers."""
    return on_paper(picture_scores(dataset))


def interactive_scores(dataset: "xarray.Dataset") -> Any:
    """The picture with plotly, for notebooks."""
    return in_notebook(picture_scores(dataset))
