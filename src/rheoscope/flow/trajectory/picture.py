"""The plot of `trajectory`: paths on one plane, speed by layer, share of attention and straightness."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.flow.caption_notes import massive_tokens_note
from rheoscope.messages.message import Message, join
from rheoscope.picture.label_placement import AxisSpans, LabelRequest, place_labels
from rheoscope.picture.picture import Axis, Line, Mark, Panel, Picture, depth_colour, format_value
from rheoscope.picture.token_labels import display_token
from rheoscope.space.step import Step

if TYPE_CHECKING:
    import xarray

CAPTION = Message(
    "Each half-layer displaces every token. Straightness is chord divided by path length. Its null gives the displacements random "
    "directions: above it updates reinforce each other, below it they cancel. The map shows only directions from the mean of the "
    "cloud, projected on two principal components."
)


MAX_PATHS = 200
"""The largest number of paths in the map. With more tokens, evenly spaced ones are drawn."""
MAX_LABELS = 40
"""The largest number of labels in the map. Every path shows its token on hover."""
ATTENTION, MLP, NORM, CROSS_ATTENTION = (
    Message("attention"),
    Message("MLP"),
    Message("norm layer"),
    Message("cross attention"),
)
SOURCE_COLOURS = {ATTENTION: "first", MLP: "second", NORM: "null", CROSS_ATTENTION: "third"}
PADDING, ASPECT = 1.08, 1.66
"""The width of the map relative to the cloud, and relative to its own height."""


def picture(dataset: "xarray.Dataset") -> Picture:
    """The map of the paths, speed and share of attention by layer, and straightness by token."""
    panels = path_panel(dataset), speed_panel(dataset), share_panel(dataset), straightness_panel(dataset)
    caption = join(" ", [CAPTION, massive_tokens_note(dataset.attrs["massive"])])
    return Picture(Message("How tokens move"), caption, panels)


def path_panel(dataset: "xarray.Dataset") -> Panel:
    """One line per token through all points, with a dot at the end. The colour is the position in the text."""
    xy, token_texts = (
        dataset.plane_position.values,
        [display_token(str(token_text)) for token_text in dataset.token_text.values],
    )
    marks: list[Mark] = []
    drawn_tokens = range(0, len(token_texts), -(-len(token_texts) // MAX_PATHS))
    tokens, lengths, straightness = (dataset[name].values for name in ("token", "path_length", "straightness"))
    for index in drawn_tokens:
        token_text, colour = token_texts[index], depth_colour(index, len(token_texts))
        tip = Message(
            "token {position} {token}: path length {length}, straightness {straightness}",
            position=int(tokens[index]),
            token=token_text,
            length=format_value(lengths[index]),
            straightness=format_value(straightness[index]),
        )
        marks += [
            Line(token_text, xy[:, index, 0], xy[:, index, 1], colour, tip=tip),
            Line(token_text, xy[-1:, index, 0], xy[-1:, index, 1], colour, "dots", tip),
        ]
    variance_share = dataset.plane_variance_share.values
    description = Message(
        "One line per token, from the embedding to the dot after the last layer. Blue tokens come first in the text, red tokens "
        "last. The first, the last and the outermost tokens are labelled."
    )
    if len(drawn_tokens) < len(token_texts):
        note = Message("{n} of {total} tokens are drawn.", n=len(drawn_tokens), total=len(token_texts))
        description = join(" ", [description, note])
    spans = view_spans(xy)
    marks += place_labels(label_requests(dataset, token_texts), xy[-1], spans, MAX_LABELS, columns=2)
    x, y = (
        Axis(
            Message(
                "component {number}: {share:.0f} % of the variance", number=k + 1, share=100 * float(variance_share[k])
            ),
            low=span[0],
            high=span[1],
        )
        for k, span in enumerate(spans)
    )
    title = Message("Paths of the tokens on the sphere")
    return Panel(title, description, tuple(marks), x, y, columns=2, height=1.9, equal=True)


def view_spans(xy: np.ndarray, aspect: float = ASPECT) -> AxisSpans:
    """The range of the map: every path, with space for labels, in the aspect ratio of the panel (width over height)."""
    low, high = xy.min((0, 1)), xy.max((0, 1))
    half = PADDING * np.maximum((high - low) / 2, 1e-3)
    half = np.maximum(half, [half[1] * aspect, half[0] / aspect])
    (left, floor), (right, top) = (low + high) / 2 - half, (low + high) / 2 + half
    return (float(left), float(right)), (float(floor), float(top))


def label_requests(dataset: "xarray.Dataset", token_texts: list[str]) -> list[LabelRequest]:
    """Label requests at the ends of the paths by priority: the first and the last token, then the outermost tokens."""
    endpoints = dataset.plane_position.values[-1]
    outermost = np.argsort(-np.linalg.norm(endpoints, axis=-1), kind="stable")
    order = dict.fromkeys([0, len(token_texts) - 1, *outermost.tolist()])
    strong = {0, len(token_texts) - 1}
    return [
        LabelRequest(float(endpoints[index, 0]), float(endpoints[index, 1]), token_texts[index], index in strong)
        for index in order
    ]


def speed_panel(dataset: "xarray.Dataset") -> Panel:
    """The median relative speed by layer, one line per component."""
    n_layers, steps = dataset.sizes["layer"], [Step.parse(str(step)) for step in dataset.step.values]
    median = np.median(dataset.relative_speed.values, axis=1)
    speed_by_source = {name: np.zeros(n_layers) for name in SOURCE_COLOURS}
    for step, value in zip(steps, median, strict=True):
        speed_by_source[step_source(step, steps)][step.layer] += value
    lines = tuple(
        Line(name, range(n_layers), x, SOURCE_COLOURS[name]) for name, x in speed_by_source.items() if x.any()
    )
    description = Message("{definition}; median over tokens.", definition=dataset.relative_speed.attrs["definition"])
    names = tuple(f"L{layer}" for layer in range(n_layers))
    y = Axis(Message("relative speed"), log=True)
    return Panel(Message("How far each layer moves the tokens"), description, lines, Axis("", names), y)


def step_source(step: Step, steps: list[Step]) -> Message:
    """The component that produced a step. Post-norm blocks have separate points for the sums, so their other points are norms.

    >>> total, middle, post = (Step(0, kind) for kind in ("attn_sum", "resid_mid", "resid_post"))
    >>> step_source(middle, [middle, post]), step_source(middle, [total, middle])
    ('attention', 'norm layer')
    """
    if step.is_cross:
        return CROSS_ATTENTION
    if Step(step.layer, "attn_sum") in steps:
        return {"attn_sum": ATTENTION, "mlp_sum": MLP}.get(step.kind, NORM)
    return ATTENTION if step.kind == "resid_mid" else MLP


def share_panel(dataset: "xarray.Dataset") -> Panel:
    names = tuple(f"L{layer}" for layer in range(dataset.sizes["layer"]))
    x = range(len(names))
    lines = (
        Line(Message("share of attention"), x, dataset.attention_share.values),
        Line(Message("straightness so far"), x, np.median(dataset.straightness_so_far.values, axis=1), "third"),
    )
    share_definition, straightness_definition = (
        dataset[name].attrs["definition"] for name in ("attention_share", "straightness_so_far")
    )
    description = Message(
        "Share: {share}. Straightness: {straightness}, median over tokens.",
        share=share_definition,
        straightness=straightness_definition,
    )
    return Panel(
        Message("Share of attention, and straightness"), description, lines, Axis("", names), Axis(low=0.0, high=1.0)
    )


def straightness_panel(dataset: "xarray.Dataset") -> Panel:
    """The straightness of every token with its null."""
    names = tuple(
        f"{token} {display_token(str(token_text))}"
        for token, token_text in zip(dataset.token.values, dataset.token_text.values, strict=True)
    )
    x = range(len(names))
    marks = (
        Line(Message("null"), x, dataset.straightness_null.values, "null", "dots"),
        Line(Message("straightness"), x, dataset.straightness.values, "first", "dots"),
    )
    description = Message(
        "{definition}. Null: {null}.",
        definition=dataset.straightness.attrs["definition"],
        null=dataset.straightness_null.attrs["definition"],
    )
    title, x_axis = Message("Straightness of every token"), Axis(Message("token"), names)
    return Panel(title, description, marks, x_axis, Axis(low=0.0), columns=3)
