"""How tokens move: their paths on one plane, how fast every layer moves them and who does, how straight they go."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.label_placement import Name, Spans, named
from rheoscope.picture.picture import Axis, Line, Mark, Panel, Picture, along, number
from rheoscope.picture.token_labels import shown
from rheoscope.space.step import Step

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "Every token is a point that each half-layer displaces. Straightness is chord over path; its null gives the same "
    "displacements random directions, so above it updates reinforce each other and below it they cancel. The map shows "
    "directions around the middle of the cloud, points on a sphere, on the plane of the frames of the cloud: two directions of "
    "many, and no lengths, since a first layer may move tokens many times theirs. Massive tokens, longer than five times the "
    "median, are left out: "
)


MOST = 200
"""Paths that one map can hold; of more tokens, evenly spaced ones are drawn."""
NAMED = 40
"""Names that the map can hold; all paths have theirs under the pointer."""
AIR, WIDE = 1.08, 1.66
"""How much wider than the cloud its window is; the width of the map over its height."""


def picture(dataset: "xarray.Dataset") -> Picture:
    """The map of the paths, speed and shares layer by layer, straightness token by token."""
    massive = ", ".join(str(token) for token in dataset.attrs["massive"]) or "none"
    panels = paths(dataset), speeds(dataset), shares(dataset), straight(dataset)
    return Picture("How tokens move", f"{CAPTION}{massive}.", panels)


def paths(dataset: "xarray.Dataset") -> Panel:
    """A line a token through all points, an open start and a dot at the end; colour is the place in the text."""
    place, words = dataset.place.values, [shown(str(word)) for word in dataset.word.values]
    marks: list[Mark] = []
    drawn = range(0, len(words), -(-len(words) // MOST))
    tokens, lengths, straight = (dataset[name].values for name in ("token", "path_length", "straightness"))
    for at in drawn:
        word, colour = words[at], along(at, len(words))
        tip = f"token {tokens[at]} {word}: path {number(lengths[at])}, straightness {number(straight[at])}"
        marks += [
            Line(word, place[:, at, 0], place[:, at, 1], colour, tip=tip),
            Line(word, place[-1:, at, 0], place[-1:, at, 1], colour, "dots", tip),
        ]
    share = dataset.place_share.values
    about = "One line a token, from the embedding to the dot after the last layer; blue tokens come first in the text, red last."
    about += " Named are the first and the last token, then the outermost."
    about += f" {len(drawn)} of {len(words)} are drawn." if len(drawn) < len(words) else ""
    spans = window(place)
    marks += named(names(dataset, words), place[-1], spans, NAMED, columns=2)
    x, y = (
        Axis(f"direction {k + 1}: {float(share[k]):.0%} of the variance", low=span[0], high=span[1])
        for k, span in enumerate(spans)
    )
    return Panel("Paths of the tokens on the sphere", about, tuple(marks), x, y, columns=2, height=1.9, equal=True)


def window(place: np.ndarray) -> Spans:
    """What the map shows: every path, with air for the names, as wide to its height as the panel is."""
    low, high = place.min((0, 1)), place.max((0, 1))
    half = AIR * np.maximum((high - low) / 2, 1e-3)
    half = np.maximum(half, [half[1] * WIDE, half[0] / WIDE])
    (left, floor), (right, top) = (low + high) / 2 - half, (low + high) / 2 + half
    return (float(left), float(right)), (float(floor), float(top))


def names(dataset: "xarray.Dataset", words: list[str]) -> list[Name]:
    """Who wants a name at the end of its path, the most wanted first: the first and the last token, then the outermost."""
    ends = dataset.place.values[-1]
    outermost = np.argsort(-np.linalg.norm(ends, axis=-1), kind="stable")
    order = dict.fromkeys([0, len(words) - 1, *outermost.tolist()])
    strong = {0, len(words) - 1}
    return [Name(float(ends[at, 0]), float(ends[at, 1]), words[at], at in strong) for at in order]


def speeds(dataset: "xarray.Dataset") -> Panel:
    """Median relative speed of every half-layer, a line for each maker."""
    layers, steps = dataset.sizes["layer"], [Step.parse(str(step)) for step in dataset.step.values]
    median = np.median(dataset.relative_speed.values, axis=1)
    table = {name: np.zeros(layers) for name in ("attention", "MLP", "norm", "cross attention")}
    for step, value in zip(steps, median, strict=True):
        table[maker(step, steps)][step.layer] += value
    colours = {"attention": "first", "MLP": "second", "norm": "null", "cross attention": "third"}
    lines = tuple(Line(name, range(layers), x, colours[name]) for name, x in table.items() if x.any())
    about = f"{dataset.relative_speed.attrs['definition']}; median over tokens."
    names = tuple(f"L{layer}" for layer in range(layers))
    return Panel("How far each layer moves them", about, lines, Axis("", names), Axis("relative speed", log=True))


def maker(step: Step, steps: list[Step]) -> str:
    """Who made a step: post-norm blocks have points of their own for the sums, so their other points are norms.

    >>> total, middle, post = (Step(0, kind) for kind in ("attn_sum", "resid_mid", "resid_post"))
    >>> maker(middle, [middle, post]), maker(middle, [total, middle])
    ('attention', 'norm')
    """
    if step.is_cross:
        return "cross attention"
    if Step(step.layer, "attn_sum") in steps:
        return {"attn_sum": "attention", "mlp_sum": "MLP"}.get(step.kind, "norm")
    return "attention" if step.kind == "resid_mid" else "MLP"


def shares(dataset: "xarray.Dataset") -> Panel:
    names = tuple(f"L{layer}" for layer in range(dataset.sizes["layer"]))
    at = range(len(names))
    lines = (
        Line("attention's share", at, dataset.attention_share.values),
        Line("straightness so far", at, np.median(dataset.straightness_so_far.values, axis=1), "third"),
    )
    share, straight = (dataset[name].attrs["definition"] for name in ("attention_share", "straightness_so_far"))
    about = f"Share: {share}. Straightness: {straight}, median over tokens."
    return Panel("Attention's share, and straightness", about, lines, Axis("", names), Axis(low=0.0, high=1.0))


def straight(dataset: "xarray.Dataset") -> Panel:
    """Every token beside its null."""
    names = tuple(
        f"{token} {shown(str(word))}" for token, word in zip(dataset.token.values, dataset.word.values, strict=True)
    )
    at = range(len(names))
    marks = (
        Line("null", at, dataset.straightness_null.values, "null", "dots"),
        Line("straightness", at, dataset.straightness.values, "first", "dots"),
    )
    about = f"{dataset.straightness.attrs['definition']}. Null: {dataset.straightness_null.attrs['definition']}."
    return Panel("Straightness of every token", about, marks, Axis("token", names), Axis(low=0.0), columns=3)
