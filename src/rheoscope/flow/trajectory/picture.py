"""How tokens move: their paths on one plane, how fast every layer moves them and who does, how straight they go."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.label_placement import AxisSpans, LabelRequest, place_labels
from rheoscope.picture.picture import Axis, Line, Mark, Panel, Picture, depth_colour, format_value
from rheoscope.picture.token_labels import display_token
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


MAX_PATHS = 200
"""Paths that one map can hold; of more tokens, evenly spaced ones are drawn."""
MAX_LABELS = 40
"""Names that the map can hold; all paths have theirs under the pointer."""
PADDING, ASPECT = 1.08, 1.66
"""How much wider than the cloud its window is; the width of the map over its height."""


def picture(dataset: "xarray.Dataset") -> Picture:
    """The map of the paths, speed and shares layer by layer, straightness token by token."""
    massive = ", ".join(str(token) for token in dataset.attrs["massive"]) or "none"
    panels = path_panel(dataset), speed_panel(dataset), share_panel(dataset), straightness_panel(dataset)
    return Picture("How tokens move", f"{CAPTION}{massive}.", panels)


def path_panel(dataset: "xarray.Dataset") -> Panel:
    """A line a token through all points, an open start and a dot at the end; colour is the place in the text."""
    xy, token_texts = dataset.place.values, [display_token(str(token_text)) for token_text in dataset.token_text.values]
    marks: list[Mark] = []
    drawn_tokens = range(0, len(token_texts), -(-len(token_texts) // MAX_PATHS))
    tokens, lengths, straightness = (dataset[name].values for name in ("token", "path_length", "straightness"))
    for index in drawn_tokens:
        token_text, colour = token_texts[index], depth_colour(index, len(token_texts))
        tip = f"token {tokens[index]} {token_text}: path {format_value(lengths[index])}, straightness {format_value(straightness[index])}"
        marks += [
            Line(token_text, xy[:, index, 0], xy[:, index, 1], colour, tip=tip),
            Line(token_text, xy[-1:, index, 0], xy[-1:, index, 1], colour, "dots", tip),
        ]
    variance_share = dataset.place_share.values
    description = "One line a token, from the embedding to the dot after the last layer; blue tokens come first in the text, red last."
    description += " Named are the first and the last token, then the outermost."
    description += (
        f" {len(drawn_tokens)} of {len(token_texts)} are drawn." if len(drawn_tokens) < len(token_texts) else ""
    )
    spans = view_spans(xy)
    marks += place_labels(label_requests(dataset, token_texts), xy[-1], spans, MAX_LABELS, columns=2)
    x, y = (
        Axis(f"direction {k + 1}: {float(variance_share[k]):.0%} of the variance", low=span[0], high=span[1])
        for k, span in enumerate(spans)
    )
    return Panel(
        "Paths of the tokens on the sphere", description, tuple(marks), x, y, columns=2, height=1.9, equal=True
    )


def view_spans(xy: np.ndarray) -> AxisSpans:
    """What the map shows: every path, with air for the names, as wide to its height as the panel is."""
    low, high = xy.min((0, 1)), xy.max((0, 1))
    half = PADDING * np.maximum((high - low) / 2, 1e-3)
    half = np.maximum(half, [half[1] * ASPECT, half[0] / ASPECT])
    (left, floor), (right, top) = (low + high) / 2 - half, (low + high) / 2 + half
    return (float(left), float(right)), (float(floor), float(top))


def label_requests(dataset: "xarray.Dataset", token_texts: list[str]) -> list[LabelRequest]:
    """Who wants a name at the end of its path, the most wanted first: the first and the last token, then the outermost."""
    endpoints = dataset.place.values[-1]
    outermost = np.argsort(-np.linalg.norm(endpoints, axis=-1), kind="stable")
    order = dict.fromkeys([0, len(token_texts) - 1, *outermost.tolist()])
    strong = {0, len(token_texts) - 1}
    return [
        LabelRequest(float(endpoints[index, 0]), float(endpoints[index, 1]), token_texts[index], index in strong)
        for index in order
    ]


def speed_panel(dataset: "xarray.Dataset") -> Panel:
    """Median relative speed of every half-layer, a line for each maker."""
    n_layers, steps = dataset.sizes["layer"], [Step.parse(str(step)) for step in dataset.step.values]
    median = np.median(dataset.relative_speed.values, axis=1)
    speed_by_source = {name: np.zeros(n_layers) for name in ("attention", "MLP", "norm", "cross attention")}
    for step, value in zip(steps, median, strict=True):
        speed_by_source[step_source(step, steps)][step.layer] += value
    colours = {"attention": "first", "MLP": "second", "norm": "null", "cross attention": "third"}
    lines = tuple(Line(name, range(n_layers), x, colours[name]) for name, x in speed_by_source.items() if x.any())
    description = f"{dataset.relative_speed.attrs['definition']}; median over tokens."
    names = tuple(f"L{layer}" for layer in range(n_layers))
    return Panel("How far each layer moves them", description, lines, Axis("", names), Axis("relative speed", log=True))


def step_source(step: Step, steps: list[Step]) -> str:
    """Who made a step: post-norm blocks have points of their own for the sums, so their other points are norms.

    >>> total, middle, post = (Step(0, kind) for kind in ("attn_sum", "resid_mid", "resid_post"))
    >>> step_source(middle, [middle, post]), step_source(middle, [total, middle])
    ('attention', 'norm')
    """
    if step.is_cross:
        return "cross attention"
    if Step(step.layer, "attn_sum") in steps:
        return {"attn_sum": "attention", "mlp_sum": "MLP"}.get(step.kind, "norm")
    return "attention" if step.kind == "resid_mid" else "MLP"


def share_panel(dataset: "xarray.Dataset") -> Panel:
    names = tuple(f"L{layer}" for layer in range(dataset.sizes["layer"]))
    x = range(len(names))
    lines = (
        Line("attention's share", x, dataset.attention_share.values),
        Line("straightness so far", x, np.median(dataset.straightness_so_far.values, axis=1), "third"),
    )
    share_definition, straightness_definition = (
        dataset[name].attrs["definition"] for name in ("attention_share", "straightness_so_far")
    )
    description = f"Share: {share_definition}. Straightness: {straightness_definition}, median over tokens."
    return Panel("Attention's share, and straightness", description, lines, Axis("", names), Axis(low=0.0, high=1.0))


def straightness_panel(dataset: "xarray.Dataset") -> Panel:
    """Every token beside its null."""
    names = tuple(
        f"{token} {display_token(str(token_text))}"
        for token, token_text in zip(dataset.token.values, dataset.token_text.values, strict=True)
    )
    x = range(len(names))
    marks = (
        Line("null", x, dataset.straightness_null.values, "null", "dots"),
        Line("straightness", x, dataset.straightness.values, "first", "dots"),
    )
    description = f"{dataset.straightness.attrs['definition']}. Null: {dataset.straightness_null.attrs['definition']}."
    return Panel("Straightness of every token", description, marks, Axis("token", names), Axis(low=0.0), columns=3)
