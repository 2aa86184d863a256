"""The picture of distorted pairs: the distance rank of each pair in E and in the image of a head."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.picture.picture import Axis, Line, Mark, Panel, Picture, format_value
from rheoscope.picture.token_labels import display_token

if TYPE_CHECKING:
    import xarray

CAPTION = Message(
    "0 is the closest pair of tokens in this text, 1 the farthest. A separated pair is close in E and far apart in the image of the "
    "head. A merged pair is far apart in E and close in the image. These are the extremes of all pairs: examples, not a test."
)
PANEL_STYLES = {
    "separated": (Message("Separated: close in E, far in the image"), "first"),
    "merged": (Message("Merged: far in E, close in the image"), "second"),
}
IMAGE_NAMES = {"query": Message("as queries"), "key": Message("as keys"), "content": Message("as content")}


def picture(dataset: "xarray.Dataset") -> Picture:
    """One panel each for separated and merged pairs."""
    layer, head, projection = (dataset.attrs[name] for name in ("layer", "head", "projection"))
    title = Message(
        "Pairs of tokens that {head} separates and merges {image}",
        head=f"L{layer}.H{head}",
        image=IMAGE_NAMES[str(projection)],
    )
    return Picture(title, CAPTION, tuple(pair_panel(dataset, kind) for kind in PANEL_STYLES))


def pair_panel(dataset: "xarray.Dataset", kind: str) -> Panel:
    """One row per pair, from its rank in E to its rank in the image. The most changed pair is on top."""
    pairs = dataset.sel(kind=kind)
    title, colour = PANEL_STYLES[kind]
    before, after = pairs.distance_rank_before.values[::-1], pairs.distance_rank_after.values[::-1]
    names = _pair_names(pairs)
    marks: list[Mark] = []
    for index, name in enumerate(names):
        tip = _pair_tip(name, before[index], after[index])
        marks += [
            Line("", [before[index], after[index]], [index, index], "null", tip=tip),
            Line("", [before[index]], [index], "null", "dots", tip),
            Line("", [after[index]], [index], colour, "dots", tip),
        ]
    marks += [
        Line(Message("in E"), [], [], "null", "dots"),
        Line(Message("in the image"), [], [], colour, "dots"),
    ]
    description = Message(
        "Grey: {before}. Coloured: {after}.",
        before=dataset.distance_rank_before.attrs["definition"],
        after=dataset.distance_rank_after.attrs["definition"],
    )
    height = max(0.7, (len(names) * 20 + 56) / 236)
    x = Axis(Message("distance rank among all pairs"), low=-0.03, high=1.03)
    return Panel(title, description, tuple(marks), x, Axis("", names, low=-0.5, high=len(names) - 0.5), height=height)


def _pair_names(pairs: "xarray.Dataset") -> tuple[str, ...]:
    """Both tokens of every pair with their positions, in the order of the rows from bottom to top."""
    columns = ("earlier_token_text", "earlier_token", "later_token_text", "later_token")
    return tuple(
        f"{display_token(str(a))} {int(i)}, {display_token(str(b))} {int(j)}"
        for a, i, b, j in zip(*(pairs[column].values for column in columns), strict=True)
    )[::-1]


def _pair_tip(name: str, before: float, after: float) -> Message:
    return Message(
        "{pair}: {before} in E, {after} in the image",
        pair=name,
        before=format_value(float(before)),
        after=format_value(float(after)),
    )
