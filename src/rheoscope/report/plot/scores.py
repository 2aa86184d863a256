"""What the scores of every head are made of: a map of layers x heads for every part."""

from typing import TYPE_CHECKING, Any

from rheoscope.report.draw.notebook import in_notebook
from rheoscope.report.draw.paper import on_paper
from rheoscope.report.picture import Panel, Picture
from rheoscope.report.plot.heads import head_map

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
    reach = (0.0, float(values.max())) if name == "spread" else (-1.0, 1.0)
    return head_map(TITLES[name], dataset[name].attrs["definition"], values, reach)


def plot_scores(dataset: "xarray.Dataset") -> "Figure":
    """The picture with matplotlib, for papers."""
    return on_paper(picture_scores(dataset))


def interactive_scores(dataset: "xarray.Dataset") -> Any:
    """The picture with plotly, for notebooks."""
    return in_notebook(picture_scores(dataset))
