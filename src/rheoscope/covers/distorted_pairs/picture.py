"""Which tokens a head tears apart, which it glues together: each pair's place among all pairs, before and after."""

from typing import TYPE_CHECKING

from rheoscope.picture.picture import Axis, Line, Panel, Picture, format_value
from rheoscope.picture.token_labels import display_token

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "0 is the nearest pair of tokens of this text, 1 the farthest. A pair is torn where it is near in E and far as "
    "the head sees it, glued where it is far in E and near as the head sees it. These are the extremes of all pairs: "
    "examples, not a test."
)
TITLES = {"torn": "Torn: near in E, far in the image", "glued": "Glued: far in E, near in the image"}
IMAGE_NAMES = {"query": "its queries", "key": "its keys", "content": "its content"}


def picture(dataset: "xarray.Dataset") -> Picture:
    """A row a pair: where it was, where it is."""
    layer, head, image = (dataset.attrs[name] for name in ("layer", "head", "image"))
    title = f"What L{layer}.H{head} tears apart and glues together, in {IMAGE_NAMES[str(image)]}"
    return Picture(title, CAPTION, tuple(pair_panel(dataset, kind) for kind in TITLES))


def pair_panel(dataset: "xarray.Dataset", kind: str) -> Panel:
    """From the place in E to the place in the image, the most changed pair on top."""
    pairs = dataset.sel(kind=kind)
    before, after = pairs.before.values[::-1], pairs.after.values[::-1]
    names = tuple(
        f"{display_token(str(a))} {int(i)}, {display_token(str(b))} {int(j)}"
        for a, i, b, j in zip(pairs.first_token.values, pairs["first"].values, pairs.second_token.values, pairs.second.values, strict=True)
    )[::-1]  # fmt: skip
    marks = []
    for index, name in enumerate(names):
        tip = f"{name}: {format_value(float(before[index]))} in E, {format_value(float(after[index]))} in the image"
        marks += [
            Line("", [before[index], after[index]], [index, index], "null", tip=tip),
            Line("", [before[index]], [index], "null", "dots", tip),
            Line("", [after[index]], [index], "first" if kind == "torn" else "second", "dots", tip),
        ]
    marks += [
        Line("in E", [], [], "null", "dots"),
        Line("in the image", [], [], "first" if kind == "torn" else "second", "dots"),
    ]
    description = f"Before: {dataset.before.attrs['definition']}. After: {dataset.after.attrs['definition']}."
    height = max(0.7, (len(names) * 20 + 56) / 236)
    x, y = Axis("place among all pairs", low=-0.03, high=1.03), Axis("", names, low=-0.5, high=len(names) - 0.5)
    return Panel(TITLES[kind], description, tuple(marks), x, y, height=height)
