"""Which ranking of heads finds those that matter: what is left of the answer as fewer are kept."""

from typing import TYPE_CHECKING

from rheoscope.picture.picture import SERIES_COLOURS, Axis, Cells, Line, Panel, Picture

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "The first heads of each ranking are kept, every other gives its mean. A faithful ranking falls to the model's own loss (dashed) with "
    "few heads; the random order (grey) is the null. Means over texts."
)
TITLES = {"loss": "Loss of the target, nats", "logit_difference": "Logit of target less foil"}


def picture(dataset: "xarray.Dataset") -> Picture:
    """A curve a ranking, for every quantity there is, and how alike the rankings are."""
    panels = [ranking_panel(dataset, name) for name in TITLES if name in dataset]
    return Picture("Which heads matter", CAPTION, (*panels, ranking_correlations(dataset)))


def ranking_panel(dataset: "xarray.Dataset", name: str) -> Panel:
    by_share = dataset.sortby("share")
    percent_kept = 100 * by_share.share.values
    lines = [
        Line(str(ranking), percent_kept, by_share[name].sel(ranking=ranking).mean("text").values, colour)
        for colour, ranking in zip(
            (*SERIES_COLOURS[:4], "null"), dataset.ranking.values, strict=False
        )  # no random order, no null
    ]
    if name == "loss":
        loss_before = float(dataset.loss_before.mean())
        lines.append(Line("the model", percent_kept, [loss_before] * len(percent_kept), "sixth", "dashed"))
    return Panel(TITLES[name], dataset[name].attrs["definition"], tuple(lines), Axis("heads kept, %"))


def ranking_correlations(dataset: "xarray.Dataset") -> Panel:
    """Rank correlations, a row and a column a ranking."""
    values, names = dataset.spearman.values, tuple(map(str, dataset.ranked.values))
    texts = [[f"{value:.2f}" for value in row] for row in values]
    marks = (Cells(values, texts=texts, tips=texts, low=-1.0, high=1.0, name="Spearman"),)
    return Panel(
        "How alike the rankings are", dataset.spearman.attrs["definition"], marks, Axis("", names), Axis("", names)
    )
