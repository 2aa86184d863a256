"""The picture of faithfulness: the loss over the fraction of kept heads, and rank correlations of the rankings."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.picture.picture import SERIES_COLOURS, Axis, Cells, Line, Panel, Picture

if TYPE_CHECKING:
    import xarray

CAPTION = Message(
    "The top heads of each ranking are kept and all others are mean-ablated. A faithful ranking reaches the loss of the unedited "
    "model (dashed) with few heads. The random order (grey) is the null. Values are means over texts."
)
TITLES = {
    "loss": Message("Loss of the target, nats"),
    "logit_difference": Message("Logit of the target minus the foil"),
}
RANKING_NAMES = {
    "reversed": Message("gradient of the scores"),
    "forward": Message("size of the update"),
    "attribution": Message("attribution"),
    "mediation": Message("mediation"),
    "random": Message("random order"),
}


def picture(dataset: "xarray.Dataset") -> Picture:
    """One curve per ranking for each quantity, and the rank correlations of the rankings."""
    panels = [ranking_panel(dataset, name) for name in TITLES if name in dataset]
    return Picture(Message("Which heads matter"), CAPTION, (*panels, ranking_correlations(dataset)))


def ranking_panel(dataset: "xarray.Dataset", name: str) -> Panel:
    """A quantity over the fraction of kept heads."""
    by_fraction = dataset.sortby("fraction")
    percent_kept = 100 * by_fraction.fraction.values
    colours = dict(zip(RANKING_NAMES, (*SERIES_COLOURS[:4], "null"), strict=True))
    lines = [
        Line(
            RANKING_NAMES[ranking],
            percent_kept,
            by_fraction[name].sel(ranking=ranking).mean("text").values,
            colours[ranking],
        )
        for ranking in map(str, dataset.ranking.values)
    ]
    if name == "loss":
        loss_before = float(dataset.loss_before.mean())
        lines.append(
            Line(Message("unedited model"), percent_kept, [loss_before] * len(percent_kept), "sixth", "dashed")
        )
    return Panel(TITLES[name], dataset[name].attrs["definition"], tuple(lines), Axis(Message("heads kept, %")))


def ranking_correlations(dataset: "xarray.Dataset") -> Panel:
    """A map of rank correlations between the rankings."""
    values, names = dataset.spearman.values, tuple(RANKING_NAMES[str(name)] for name in dataset.score.values)
    texts = [[f"{value:.2f}" for value in row] for row in values]
    marks = (Cells(values, texts=texts, tips=texts, low=-1.0, high=1.0, name=Message("Spearman’s ρ")),)
    title, definition = Message("Correlation of the rankings"), dataset.spearman.attrs["definition"]
    return Panel(title, definition, marks, Axis("", names), Axis("", names))
